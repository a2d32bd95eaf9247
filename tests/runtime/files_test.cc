// The JSON reader, atomic and mapped files, checksums.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/io/open_to_write.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::io {
namespace {

// ---- The JSON reader accepts exactly what another parser accepts

TEST(Json, AgreesWithAnotherParser) {
  const auto ours = [](const std::string& text) {
    static const std::string path = "text";
    try {
      JsonReader json(path, text);
      json.skip();
      json.finish();
      return true;
    } catch (const FileError&) {
      return false;
    }
  };
  // Nothing where it gives up on a number beyond a double's range, which is JSON all the same.
  const auto theirs = [](const std::string& text) -> std::optional<bool> {
    try {
      return !nlohmann::json::parse(text).is_discarded();
    } catch (const nlohmann::json::parse_error&) {
      return false;
    } catch (const nlohmann::json::out_of_range&) {
      return std::nullopt;
    }
  };
  const std::string seeds[] = {
      R"({"a": [1, -2.5e+10, 0.1E-2, 0, -0], "b\u00e9\ud83d\ude00\n": {"c": null, "d": [true, false]}})",
      R"([[], {}, "", "\"\\\/\b\f\n\r\t", {"x": [{"y": 1e5}]}, 123456789012345678901234567890])",
      "[\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\", \"z\"]"};
  for (const std::string& seed : seeds) EXPECT_TRUE(ours(seed)) << seed;
  std::mt19937 random(1);
  const std::string alphabet = "{}[]\",:\\u0123456789.eE+-truefalsn \n\x01\x80\xC3\xED\xA0\xF0\xFF";
  int accepted = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string text = seeds[i % 3];
    for (unsigned edits = random() % 3 + 1; edits > 0 && !text.empty(); --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = alphabet[random() % alphabet.size()]; break;
        case 1: text.erase(at, random() % 3 + 1); break;
        default: text.insert(at, 1, alphabet[random() % alphabet.size()]);
      }
    }
    const std::optional<bool> expected = theirs(text);
    if (!expected) continue;
    accepted += *expected;
    ASSERT_EQ(ours(text), *expected) << text;
  }
  EXPECT_GT(accepted, 5'000);
}

TEST(Json, StringsRoundTrip) {
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  text += "\u00e9\u4f60\U0001F600";
  std::string out;
  append_json_string(out, text);
  EXPECT_EQ(nlohmann::json::parse(out).get<std::string>(), text);
  const std::string path = "text";
  EXPECT_EQ(JsonReader(path, out).string(), text);
}

// ---- Atomic files

TEST(AtomicFile, IsInvisibleUntilCommittedAndLeavesNothing) {
  TempFolder folder;
  const std::string path = folder / "f";
  write_file_atomic(path, "old");
  {
    AtomicFile file(path);
    file.write(std::string(1 << 20, 'x'));
    file.write("y");
    EXPECT_EQ(read_bytes(path), "old");
  }
  EXPECT_EQ(folder.entries(), 1);
  AtomicFile file(path);
  file.write("????");
  file.write(std::string(1 << 20, 'x'));
  file.write_at(0, "head", 4);
  file.write("tail");
  file.commit();
  EXPECT_EQ(read_bytes(path), "head" + std::string(1 << 20, 'x') + "tail");
  EXPECT_EQ(folder.entries(), 1);
  expect_file_error(path, "committed", [&] { file.write("more"); });

  // A folder in the way: the rename fails, and the temporary file goes.
  std::filesystem::create_directory(folder / "d");
  write_bytes(folder / "d/file", "");
  expect_file_error(folder / "d", "cannot rename", [&] { write_file_atomic(folder / "d", "x"); });
  EXPECT_EQ(folder.entries(), 2);
}

// A rename would put a file in their place: in that of /dev/null, for root.
TEST(AtomicFile, LeavesDevicesAndPipesAlone) {
  TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("fifo", folder / "link");
  for (const char* name : {"fifo", "link"})
    expect_file_error(folder / name, "not a regular file", [&] { write_file_atomic(folder / name, "x"); });
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "fifo"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(folder.entries(), 2);
}

TEST(MappedFile, RefusesWhatIsNotAFile) {
  TempFolder folder;
  expect_file_error(folder / "none", "No such file", [&] { MappedFile::open(folder / "none"); });
  expect_file_error(folder.path(), "not a regular file", [&] { MappedFile::open(folder.path()); });
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_file_error(folder / "fifo", "not a regular file", [&] { MappedFile::open(folder / "fifo"); });
  write_bytes(folder / "empty", "");
  EXPECT_EQ(MappedFile::open(folder / "empty")->size(), 0u);
  EXPECT_EQ(MappedFile::open(folder / "empty")->text(), "");
}

// The system would read "folder/a" and write it.
TEST(Paths, WithAZeroByteAreRefused) {
  TempFolder folder;
  write_bytes(folder / "a", "kept");
  const std::string path = folder / std::string("a\0b", 3);
  const auto refused = [&](auto call) {
    const std::string error = test::error_of(call);
    EXPECT_NE(error.find("zero byte"), std::string::npos) << error;
  };
  refused([&] { OpenFile file(path); });
  refused([&] { MappedFile::open(path); });
  refused([&] { write_file_atomic(path, "x"); });
  refused([&] { open_to_write(path, O_WRONLY | O_TRUNC, Links::kFollow, 0666); });
  EXPECT_EQ(read_text(folder / "a", 10), "kept");
}

// Values of the specification's reference implementation.
TEST(Checksum, KnownValues) {
  const auto sum = [](std::string_view text) {
    Checksum sum;
    sum.update(text);
    return sum.digest();
  };
  EXPECT_EQ(sum(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(sum("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(sum("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(sum("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
  // Any way of cutting the input gives the same sum.
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 37);
  for (size_t piece = 1; piece < 100; ++piece) {
    Checksum pieces;
    for (size_t at = 0; at < text.size(); at += piece) pieces.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(pieces.digest(), sum(text));
  }
}

}  // namespace
}  // namespace rondo::io
