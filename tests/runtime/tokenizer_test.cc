// Tokenizers of bytes and characters.
#include "rondo/runtime/text/simple_tokenizer.h"

#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::io {
namespace {

using Ids = std::vector<int32_t>;

std::string every_byte() {
  std::string text;
  for (int b = 0; b < 256; ++b) text += static_cast<char>(b);
  return text;
}

TEST(ByteTokenizer, RoundTripsAnything) {
  const ByteTokenizer bytes;
  EXPECT_EQ(bytes.encode("A\xff"), (Ids{65, 255}));
  EXPECT_EQ(bytes.decode(bytes.encode(every_byte())), every_byte());
  EXPECT_THROW(bytes.decode(Ids{256}), Error);
  EXPECT_THROW(bytes.decode(Ids{-1}), Error);
}

TEST(CharTokenizer, CodePointsInOrder) {
  const std::string text = "na\u00efve \u4f60\u597d\n\U0001F600 a";
  const CharTokenizer chars = CharTokenizer::from_text(text);
  EXPECT_EQ(chars.vocab_size(), 10);
  EXPECT_EQ(chars.encode("\n a"), (Ids{0, 1, 2}));
  EXPECT_EQ(chars.encode("\U0001F600"), (Ids{9}));
  EXPECT_EQ(chars.decode(chars.encode(text)), text);
  EXPECT_EQ(CharTokenizer::from_text("").vocab_size(), 0);
  // As nn::generate() makes tokens, and through the interface.
  EXPECT_EQ(chars.decode(std::vector<int64_t>{0, 1, 2}), "\n a");
  const Tokenizer& any = chars;
  EXPECT_EQ(any.decode(std::vector<int64_t>{9}), "\U0001F600");
  EXPECT_THROW(chars.decode(std::vector<int64_t>{10}), Error);
  EXPECT_THROW(chars.decode(std::vector<int64_t>{int64_t{1} << 32}), Error);
  const auto message = [&](std::string_view bad) {
    try {
      chars.encode(bad);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("aZ"), "CharTokenizer: U+005A at byte 1 is not in the vocabulary of 10");
  EXPECT_EQ(message("\u4f60\u4f61"), "CharTokenizer: U+4F61 at byte 3 is not in the vocabulary of 10");
  EXPECT_EQ(message("a\xc3"), "CharTokenizer: the text is not valid UTF-8 at byte 1");
  EXPECT_THROW(CharTokenizer::from_text("\xed\xa0\x80"), Error);
  EXPECT_THROW(chars.decode(Ids{10}), Error);
  EXPECT_THROW(chars.decode(Ids{-1}), Error);
}

TEST(CharTokenizer, SavesAndLoads) {
  TempFolder folder;
  const std::string path = folder / "chars.json";
  const std::string text = std::string("\0\n\"\\\x7f", 5) + "\u00e9\u2028\U0001F600";
  const CharTokenizer chars = CharTokenizer::from_text(text);
  chars.save(path);
  const CharTokenizer loaded = CharTokenizer::load(path);
  EXPECT_EQ(loaded.vocab_size(), chars.vocab_size());
  EXPECT_EQ(loaded.encode(text), chars.encode(text));
  EXPECT_EQ(loaded.to_json(), chars.to_json());

  const auto refused = [&](std::string_view json, std::string_view reason) {
    write_bytes(path, json);
    expect_file_error(path, reason, [&] { CharTokenizer::load(path); });
  };
  refused("", "expected an object");
  refused("{}", "not a character vocabulary");
  refused(R"({"type":"bpe","vocabulary":[]})", "not a character vocabulary");
  refused(R"({"type":"char","vocabulary":["ab"]})", "not one character");
  refused(R"({"type":"char","vocabulary":[""]})", "not one character");
  refused(R"({"type":"char","vocabulary":["b","a"]})", "ascending");
  refused(R"({"type":"char","vocabulary":["a","a"]})", "ascending");
  refused(R"({"type":"char","vocabulary":[1]})", "expected a string");
  refused(R"({"type":"char","vocabulary":[],"vocabulary":[]})", "unexpected field");
}

// nanoGPT's published numbers for this text: 65 characters, split into 1,003,854 and 111,540.
TEST(CharTokenizer, TinyShakespeare) {
  const std::string path = shared_data("tinyshakespeare.txt");
  if (path.empty()) GTEST_SKIP() << "../shared/data/tinyshakespeare.txt is not there";
  const std::string text = read_bytes(path);
  const CharTokenizer chars = CharTokenizer::from_text(text);
  EXPECT_EQ(chars.vocab_size(), 65);
  EXPECT_EQ(chars.encode("hii there"), (Ids{46, 47, 47, 1, 58, 46, 43, 56, 43}));
  EXPECT_EQ(chars.decode(chars.encode(text)), text);
}

}  // namespace
}  // namespace rondo::io
