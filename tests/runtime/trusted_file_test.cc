#include "rondo/runtime/io/trusted_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "rondo/runtime/io/atomic_file.h"
#include "rondo/tests/compile/temp_folder.h"

namespace rondo::io {
namespace {

namespace fs = std::filesystem;

class TrustedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    ::chmod(folder_.path().c_str(), 0755);
    fs::create_directories(folder_ / "a/b");
    ::chmod((folder_ / "a").c_str(), 0755);
    ::chmod((folder_ / "a/b").c_str(), 0755);
    write_file_atomic(file_, "code");
    ::chmod(file_.c_str(), 0644);
  }
  // Its bytes, or why not.
  static std::string read(const std::string& path) {
    const absl::StatusOr<TrustedFile> file = TrustedFile::open(path);
    if (!file.ok()) return std::string(file.status().message());
    const absl::StatusOr<std::string> bytes = file->read();
    return bytes.ok() ? *bytes : std::string(bytes.status().message());
  }
  std::string unsafe(const std::string& path) const {
    return "its folder is not safe: " + path + ": others than its owner may write to it (chmod go-w)";
  }

  test::TempFolder folder_;
  const std::string file_ = folder_ / "a/b/file";
};

TEST_F(TrustedFileTest, EveryFolderOnTheWayIsChecked) {
  EXPECT_EQ(read(file_), "code");
  EXPECT_EQ(read(folder_ / "a//b/../b/./file"), "code");
  for (const char* name : {"a", "a/b"}) {
    for (const mode_t mode : {0775, 0757, 0777}) {
      ::chmod((folder_ / name).c_str(), mode);
      EXPECT_EQ(read(file_), unsafe(folder_ / name));
    }
    ::chmod((folder_ / name).c_str(), 0755);
  }
  ::chmod(file_.c_str(), 0664);
  EXPECT_EQ(read(file_), "others than its owner may write to it (chmod go-w)");
  ::chmod(file_.c_str(), 0644);
  // In a sticky folder others cannot rename what is ours: safe on the way, but no place for the file itself.
  ::chmod((folder_ / "a").c_str(), 01777);
  EXPECT_EQ(read(file_), "code");
  ::chmod((folder_ / "a/b").c_str(), 01777);
  EXPECT_EQ(read(file_), unsafe(folder_ / "a/b"));
  if (::geteuid() == 0) {  // who may give files away
    ::chmod((folder_ / "a/b").c_str(), 0755);
    for (const std::string& path : {folder_ / "a", file_}) {
      ASSERT_EQ(::chown(path.c_str(), 1234, 1234), 0);
      EXPECT_NE(read(file_).find("it belongs to user 1234"), std::string::npos);
      ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
    }
  }
}

TEST_F(TrustedFileTest, LinksAreFollowedByTheWalkItself) {
  fs::create_directory(folder_ / "links");
  fs::create_symlink("../a", folder_ / "links/relative");
  fs::create_symlink(folder_ / "links/relative/b", folder_ / "links/absolute");
  fs::create_symlink(folder_ / "links/absolute/file", folder_ / "links/file");
  EXPECT_EQ(read(folder_ / "links/relative/b/file"), "code");
  EXPECT_EQ(read(folder_ / "links/absolute/file"), "code");
  EXPECT_EQ(read(folder_ / "links/file"), "code");
  // The folders behind a link count as well.
  ::chmod((folder_ / "a").c_str(), 0777);
  EXPECT_EQ(read(folder_ / "links/absolute/file"), unsafe(folder_ / "links/../a"));
  ::chmod((folder_ / "a").c_str(), 0755);
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_NE(read(folder_ / "loop/file").find("too many symbolic links"), std::string::npos);
  if (::geteuid() == 0) {
    ASSERT_EQ(::lchown((folder_ / "links/file").c_str(), 1234, 1234), 0);
    EXPECT_NE(read(folder_ / "links/file").find("the symbolic link belongs to user 1234"), std::string::npos);
  }
}

TEST_F(TrustedFileTest, NothingElseOpens) {
  EXPECT_EQ(read("file"), "the path is not absolute");
  EXPECT_EQ(read(""), "the path is not absolute");
  EXPECT_EQ(read("/"), "no regular file");
  EXPECT_EQ(read(folder_ / "a"), "no regular file");
  EXPECT_NE(read(file_ + "/more").find("no regular file"), std::string::npos);
  EXPECT_EQ(read(folder_ / "a/nothing"), "no such file");
  EXPECT_EQ(read(folder_ / "nothing/file"), "no such file");
  ASSERT_EQ(::mkfifo((folder_ / "a/fifo").c_str(), 0600), 0);
  EXPECT_NE(read(folder_ / "a/fifo").find("no regular file"), std::string::npos);
  EXPECT_NE(read("/dev/null").find("no regular file"), std::string::npos);
}

// What is used is what was checked, also after the path has come to mean another file.
TEST_F(TrustedFileTest, ARenameChangesNothing) {
  const absl::StatusOr<TrustedFile> file = TrustedFile::open(file_);
  ASSERT_TRUE(file.ok());
  write_file_atomic(file_, "other code");
  EXPECT_EQ(*file->read(), "code");
  EXPECT_EQ(fs::read_symlink(file->loadable_path()), file_ + " (deleted)");
}

}  // namespace
}  // namespace rondo::io
