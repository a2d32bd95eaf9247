// The files that a run writes in place, where somebody put something else: links, FIFOs, damaged lines, leftovers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "rondo/optim/trainer/append_file.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/optim/trainer/run_lock.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

namespace fs = std::filesystem;
using test::error_of;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RunLockFiles, ALinkIsNotFollowed) {
  const test::TempFolder folder;
  io::write_file_atomic(folder / "precious", "do not touch");
  fs::create_directory(folder / "run");
  fs::create_symlink(folder / "precious", folder / "run/.lock");
  EXPECT_NE(error_of<FileError>([&] { RunLock(folder / "run"); }).find("/.lock: cannot write: is a symbolic link"),
            std::string::npos);
  EXPECT_EQ(text_of(folder / "precious"), "do not touch");
  fs::remove(folder / "run/.lock");
  fs::create_symlink(folder / "nothing yet", folder / "run/.lock");
  EXPECT_NE(error_of<FileError>([&] { RunLock(folder / "run"); }), "");
  EXPECT_FALSE(fs::exists(folder / "nothing yet"));
  fs::remove(folder / "run/.lock");
  fs::create_hard_link(folder / "precious", folder / "run/.lock");
  EXPECT_NE(error_of<FileError>([&] { RunLock(folder / "run"); }).find("a hard link"), std::string::npos);
  EXPECT_EQ(text_of(folder / "precious"), "do not touch");
}

TEST(RunLockFiles, NothingIsTruncatedBeforeTheLock) {
  const test::TempFolder folder;
  const RunLock first(folder.path());
  EXPECT_EQ(text_of(folder / ".lock"), absl::StrCat(::getpid(), "\n"));
  EXPECT_NE(error_of([&] { RunLock(folder.path()); }), "");
  EXPECT_EQ(text_of(folder / ".lock"), absl::StrCat(::getpid(), "\n"));
}

// A FIFO that nobody reads, and one that somebody reads: opening either would wait, or write who knows where.
TEST(FilesInPlace, AreRegularFiles) {
  const test::TempFolder folder;
  for (const char* name : {"metrics.jsonl", ".lock"}) ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
  const auto refused = [](auto fn) {
    EXPECT_NE(error_of<FileError>(fn).find("is not a regular file"), std::string::npos) << error_of<FileError>(fn);
  };
  for (const bool is_read : {false, true}) {
    const int reader = is_read ? ::open((folder / "metrics.jsonl").c_str(), O_RDONLY | O_NONBLOCK) : -1;
    for (const auto mode : {AppendFile::kReplace, AppendFile::kContinue})
      refused([&] { AppendFile(folder / "metrics.jsonl", mode); });
    refused([&] { MetricsFile(folder / "metrics.jsonl", 0); });
    refused([&] { MetricsFile(folder / "metrics.jsonl", 5); });
    refused([&] { RunLock(folder.path()); });
    if (is_read) ::close(reader);
  }
  refused([] { AppendFile("/dev/null", AppendFile::kContinue); });
}

TEST(FilesInPlace, ADamagedLineOfTheMetricsIsNamed) {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string good = to_json({.step = 1, .loss = 2}) + "\n";
  const auto error = [&](const std::string& text) {
    std::ofstream(path) << text;
    return error_of<FileError>([&] { MetricsFile(path, 9); });
  };
  EXPECT_NE(error(good + good + "{\"step\":3,\"loss\":}\n" + good).find(path + ": line 3: "), std::string::npos);
  EXPECT_NE(error(good + "\xFF\xFE\n").find(path + ": line 2: "), std::string::npos);
  EXPECT_NE(error(good + std::string(4, '\0') + "\n").find(path + ": line 2: "), std::string::npos);
  // A byte order mark, as an editor leaves it, is no damage; nor is a last line that a kill cut short.
  EXPECT_EQ(error("\xEF\xBB\xBF" + good + "{\"step\":2,"), "");
  EXPECT_EQ(text_of(path), good);
  // Nothing was written where nothing could be read.
  const std::string damaged = good + "damaged\n";
  EXPECT_NE(error(damaged), "");
  EXPECT_EQ(text_of(path), damaged);
}

// A writer is killed in the middle of a file. Whoever owns the folder next finds it clean.
TEST(Leftovers, GoWhenTheRunStartsAgain) {
  const test::TempFolder folder;
  const pid_t writer = ::fork();
  if (writer == 0) {
    io::AtomicFile file(folder / "ckpt.safetensors"), other(folder / "model.v2.json");
    ::raise(SIGKILL);
  }
  ::waitpid(writer, nullptr, 0);
  io::AtomicFile mine(folder / "mine");
  for (const char* name : {".tmp-weights", ".tmp-old", "tmp-not.1.1", "data"}) std::ofstream(folder / name) << "x";
  fs::last_write_time(folder / ".tmp-old", fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::create_directory(folder / ".tmp-folder.999999999.1");
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder.path())) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  };
  EXPECT_EQ(names().size(), 8u);  // two of the killed writer
  const RunLock lock(folder.path());
  const std::string own = absl::StrCat(".tmp-mine.", ::getpid(), ".");
  std::vector<std::string> left = names();
  ASSERT_EQ(left.size(), 6u);
  EXPECT_EQ(left[0], ".lock");
  EXPECT_EQ(left[1], ".tmp-folder.999999999.1");
  EXPECT_TRUE(left[2].starts_with(own)) << left[2];  // of a writer at work
  EXPECT_EQ(left[3], ".tmp-weights");                // of nobody knows whom, and new
  EXPECT_EQ(left[4], "data");
  EXPECT_EQ(left[5], "tmp-not.1.1");
  mine.write("whole");
  mine.commit();
  EXPECT_EQ(text_of(folder / "mine"), "whole");
}

}  // namespace
}  // namespace rondo::optim
