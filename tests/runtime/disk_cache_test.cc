// The disk cache: what it finds is what was stored, and nothing that is wrong with a folder does harm.
#include "rondo/runtime/io/disk_cache.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/kernel_file.h"
#include "rondo/tests/compile/temp_folder.h"

namespace rondo::io {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

KernelFile some_file() { return {"cpu: x\n", {{"kernel one\n", std::string(100, 'a')}, {"kernel two\n", "b"}}}; }

TEST(KernelFileTest, ComesBackAsItWas) {
  const auto file = unpack(pack(some_file()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->host, "cpu: x\n");
  ASSERT_EQ(file->kernels.size(), 2u);
  EXPECT_EQ(file->kernels[0].object, std::string(100, 'a'));
  EXPECT_EQ(file->kernels[1].kernel, "kernel two\n");
}

TEST(KernelFileTest, RefusesEveryTruncationAndEveryFlippedBit) {
  const std::string whole = pack(some_file());
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(unpack(whole.substr(0, size)).ok()) << size;
  EXPECT_FALSE(unpack(whole + "x").ok());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(unpack(damaged).ok()) << bit;
  }
}

TEST(KernelFileTest, RefusesLengthsThatLieUnderAGoodChecksum) {
  for (uint64_t length : {~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{1} << 40, uint64_t{8}}) {
    for (size_t at : {size_t{24}, size_t{24 + 8 + 7}}) {  // of the host's text, of the first kernel's
      std::string bytes = pack(some_file());
      std::memcpy(bytes.data() + at, &length, 8);
      // A checksum that fits: that of the rest, taken from a file whose only string it is.
      Checksum sum;
      sum.update(bytes.data() + 24, bytes.size() - 24);
      const uint64_t digest = sum.digest();
      std::memcpy(bytes.data() + 16, &digest, 8);
      const auto file = unpack(bytes);
      ASSERT_FALSE(file.ok());
      EXPECT_NE(file.status().ToString().find("lengths"), std::string::npos) << file.status();
    }
  }
  std::string bytes = pack(some_file());
  const uint32_t many = ~0u;
  std::memcpy(bytes.data() + 12, &many, 4);
  EXPECT_FALSE(unpack(bytes).ok());
}

const HostKey kHost{{{"build", "7"}, {"cpu", "Vendor avx2"}}};

class DiskCacheTest : public testing::Test {
 protected:
  void SetUp() override { warnings_.clear(); }

  // The sink of warnings of all caches of a test.
  static void warn(std::string_view text) { warnings_.emplace_back(text); }
  DiskCacheOptions options() const { return {.folder = temp_ / name_, .warn = &warn}; }
  // The one entry of the folder.
  std::string entry() const {
    for (const auto& file : fs::recursive_directory_iterator(temp_ / name_))
      if (file.path().extension() == ".rk") return file.path().string();
    return "";
  }
  void spoil(const std::string& path, absl::FunctionRef<void(std::string&)> change) {
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    change(bytes);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Whatever is wrong: nothing is found, one warning is given however often one asks, and (unless the folder is
  // refused) the next store repairs it.
  void expect_one_warning(const std::string& about, bool repairs) {
    {
      DiskCache cache(options(), kHost);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.find("kernel"), std::nullopt);
      cache.store("kernel", "code");
      cache.store("other kernel", "code");
      EXPECT_EQ(cache.find("kernel").has_value(), repairs);
    }
    ASSERT_EQ(warnings_.size(), 1u) << (warnings_.empty() ? "" : warnings_.back());
    EXPECT_NE(warnings_[0].find(about), std::string::npos) << warnings_[0];
  }

  test::TempFolder temp_;
  std::string name_ = "cache";
  static inline std::vector<std::string> warnings_;
};

// A word that is not known is not taken for "on": who mistypes "off" would measure a warm cache.
TEST(DiskCacheOptionsTest, UnknownSettingsAreErrors) {
  struct Setting {
    const char *name, *value, *says;
  };
  for (const auto& [name, value, says] : {Setting{"RONDO_CACHE", "of", "RONDO_CACHE=of is neither on nor off"},
                                          Setting{"RONDO_CACHE_MB", "1G", "RONDO_CACHE_MB=1G is not a number of MiB"},
                                          Setting{"RONDO_CACHE_MB", "-1", "RONDO_CACHE_MB=-1 is not a number"}}) {
    const auto in_a_process_of_its_own = [&] {
      unsetenv("RONDO_CACHE");
      setenv(name, value, 1);
      try {
        DiskCacheOptions::from_environment();
      } catch (const Error& e) {
        std::fputs(e.what(), stderr);
      }
      std::_Exit(0);
    };
    EXPECT_EXIT(in_a_process_of_its_own(), testing::ExitedWithCode(0), says);
  }
}

TEST_F(DiskCacheTest, FindsWhatWasStored) {
  {
    DiskCache cache(options(), kHost);
    EXPECT_EQ(cache.find("kernel"), std::nullopt);
    cache.store("kernel", "code");
    cache.store("another", "more code");
  }
  DiskCache cache(options(), kHost);
  EXPECT_EQ(cache.find("kernel"), "code");
  EXPECT_EQ(cache.find("another"), "more code");
  EXPECT_EQ(cache.find("a third"), std::nullopt);
  EXPECT_TRUE(warnings_.empty());
  cache.reject("kernel", "a test says so");
  EXPECT_EQ(cache.find("kernel"), std::nullopt);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(DiskCacheTest, IsForTheUserAloneWhateverTheUmask) {
  const mode_t before = ::umask(0);
  DiskCache cache(options(), kHost);
  cache.store("kernel", "code");
  ::umask(before);
  EXPECT_EQ(cache.find("kernel"), "code");
  for (const std::string& path : {temp_ / name_, fs::path(entry()).parent_path().string(), entry()})
    EXPECT_EQ(fs::status(path).permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none) << path;
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(DiskCacheTest, ComparesWholeTexts) {
  DiskCache cache(options(), kHost);
  cache.store("kernel", "code");
  const std::string kernel = entry();
  cache.store("another", "more code");
  // As if the hashes of both were equal.
  for (const auto& file : fs::recursive_directory_iterator(temp_ / name_))
    if (file.path().extension() == ".rk" && file.path() != kernel) fs::rename(file.path(), kernel);
  EXPECT_EQ(cache.find("kernel"), std::nullopt);
  cache.store("kernel", "code");
  EXPECT_EQ(cache.find("kernel"), "code");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(DiskCacheTest, DamagedEntry) {
  DiskCache(options(), kHost).store("kernel", "code");
  spoil(entry(), [](std::string& bytes) { bytes.back() ^= 1; });
  expect_one_warning("checksum", true);
}

TEST_F(DiskCacheTest, TruncatedAndEmptyEntries) {
  for (size_t size : {0, 10, 40}) {
    warnings_.clear();
    name_ = "cache" + std::to_string(size);
    DiskCache(options(), kHost).store("kernel", "code");
    spoil(entry(), [&](std::string& bytes) { bytes.resize(size); });
    expect_one_warning(size < 24 ? "shorter" : "checksum", true);
  }
}

TEST_F(DiskCacheTest, EntryThatIsNoFile) {
  DiskCache(options(), kHost).store("kernel", "code");
  const std::string path = entry();
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_one_warning("no regular file", true);
}

TEST_F(DiskCacheTest, EntryThatOthersMayWriteTo) {
  DiskCache(options(), kHost).store("kernel", "code");
  fs::permissions(entry(), fs::perms::group_write, fs::perm_options::add);
  expect_one_warning("chmod", true);
}

TEST_F(DiskCacheTest, FolderThatOthersMayWriteTo) {
  DiskCache(options(), kHost).store("kernel", "code");
  fs::permissions(temp_ / name_, fs::perms::others_write, fs::perm_options::add);
  expect_one_warning("chmod", false);
}

TEST_F(DiskCacheTest, ForeignFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  DiskCache(options(), kHost).store("kernel", "code");
  ASSERT_EQ(::chown((temp_ / name_).c_str(), 12345, 12345), 0);
  expect_one_warning("belongs to user 12345", false);
}

TEST_F(DiskCacheTest, ForeignEntry) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  DiskCache(options(), kHost).store("kernel", "code");
  ASSERT_EQ(::chown(entry().c_str(), 12345, 12345), 0);
  expect_one_warning("belongs to user 12345", true);
}

TEST_F(DiskCacheTest, PlaceTakenByAFile) {
  std::ofstream(temp_ / name_) << "not a folder";
  expect_one_warning("Not a directory", false);
}

// Runs in a child process whose rights or limits may be spoiled; its checks are its exit status.
template <class Body> void in_child(Body body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(DiskCacheTest, ReadOnlyFolder) {
  DiskCache(options(), kHost).store("kernel", "code");
  if (::geteuid() == 0) {  // nothing is read-only to root: the child is somebody else
    ASSERT_EQ(::chown(temp_.path().c_str(), 12345, 12345), 0);
    for (const auto& file : fs::recursive_directory_iterator(temp_.path()))
      ASSERT_EQ(::chown(file.path().c_str(), 12345, 12345), 0);
  }
  for (const auto& file : fs::recursive_directory_iterator(temp_.path()))
    if (file.is_directory()) fs::permissions(file.path(), fs::perms::owner_write, fs::perm_options::remove);
  in_child([&] {
    if (::geteuid() == 0 && ::seteuid(12345) != 0) return 1;
    DiskCache cache(options(), kHost);
    if (cache.find("kernel") != "code") return 2;
    cache.store("new kernel", "code");
    cache.store("newer kernel", "code");
    if (cache.find("new kernel").has_value()) return 3;
    if (warnings_.size() != 1 || warnings_[0].find("Permission denied") == std::string::npos) return 4;
    return cache.find("kernel") == "code" ? 0 : 5;
  });
  for (const auto& file : fs::recursive_directory_iterator(temp_.path()))
    if (file.is_directory()) fs::permissions(file.path(), fs::perms::owner_write, fs::perm_options::add);
}

TEST_F(DiskCacheTest, FullDisk) {
  DiskCache(options(), kHost).store("kernel", "code");
  in_child([&] {
    // The kernel refuses to make files any longer, as a full disk does (with another errno).
    const rlimit limit{1000, 1000};
    ::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    DiskCache cache(options(), kHost);
    cache.store("large kernel", std::string(100000, 'x'));
    if (cache.find("large kernel").has_value()) return 2;
    if (warnings_.size() != 1 || warnings_[0].find("cannot write") == std::string::npos) return 3;
    return cache.find("kernel") == "code" ? 0 : 4;
  });
  for (const auto& file : fs::recursive_directory_iterator(temp_.path()))
    EXPECT_FALSE(file.path().filename().string().starts_with(AtomicFile::kTempPrefix)) << file.path();
}

TEST_F(DiskCacheTest, RemovesTheOldestBeyondItsBound) {
  const std::string object(9000, 'x');
  DiskCache(options(), kHost).store("kernel0", object);
  DiskCacheOptions bounded = options();
  bounded.max_bytes = static_cast<int64_t>(fs::file_size(entry())) * 21 /
                      2;  // ten fit, and seven in three quarters of it
  for (int i = 0; i < 9; ++i) {
    DiskCache(bounded, kHost).store("kernel" + std::to_string(i), object);
    for (const auto& file : fs::recursive_directory_iterator(temp_ / name_))  // each is an hour older than the next
      if (file.is_regular_file()) fs::last_write_time(file.path(), file.last_write_time() - 1h);
  }
  const std::string host = fs::path(entry()).parent_path().string(), dead = host + "/.tmp-dead",
                    alive = host + "/.tmp-alive";
  std::ofstream(dead) << "of a process that was killed";
  fs::last_write_time(dead, fs::file_time_type::clock::now() - 2h);
  std::ofstream(alive) << "of a process that is writing";
  // Not ours, whatever it is called.
  fs::create_directories(temp_ / "cache/music");
  const std::string foreign[] = {temp_ / "cache/old.rk", temp_ / "cache/music/old.rk"};
  for (const std::string& path : foreign) {
    std::ofstream(path) << std::string(50000, 'x');
    fs::last_write_time(path, fs::file_time_type::clock::now() - 1000h);
  }
  DiskCache cache(bounded, kHost);
  for (int i = 9; i < 12; ++i) cache.store("kernel" + std::to_string(i), object);
  std::string left;
  for (int i = 0; i < 12; ++i) left += cache.find("kernel" + std::to_string(i)).has_value() ? '1' : '0';
  EXPECT_EQ(left, "000011111111");
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  for (const std::string& path : foreign) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(DiskCacheTest, CountsOnceADay) {
  DiskCacheOptions bounded = options();
  DiskCache(bounded, kHost).store("kernel0", std::string(9000, 'x'));
  bounded.max_bytes = static_cast<int64_t>(fs::file_size(entry())) * 9;
  const auto left = [&] {
    int count = 0;
    for (int i = 0; i < 20; ++i) count += DiskCache(bounded, kHost).find("kernel" + std::to_string(i)).has_value();
    return count;
  };
  // Processes that store little each.
  for (int i = 1; i < 20; ++i) DiskCache(bounded, kHost).store("kernel" + std::to_string(i), std::string(9000, 'x'));
  EXPECT_EQ(left(), 20);
  fs::last_write_time(temp_ / "cache/pruned", fs::file_time_type::clock::now() - 25h);
  DiskCache(bounded, kHost).store("kernel0", std::string(9000, 'x'));
  EXPECT_EQ(left(), 6);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(DiskCacheTest, WhatIsUsedIsYoung) {
  DiskCache cache(options(), kHost);
  cache.store("kernel", "code");
  const auto long_ago = fs::file_time_type::clock::now() - 48h;
  fs::last_write_time(entry(), long_ago);
  EXPECT_EQ(cache.find("kernel"), "code");
  EXPECT_GT(fs::last_write_time(entry()), long_ago + 47h);
}

TEST_F(DiskCacheTest, OtherHostsAreOtherEntries) {
  HostKey other = kHost;
  for (HostKey::Component& c : other.components)
    if (c.name == "cpu") c.value = "Vendor avx9000 " + c.value;
  DiskCache theirs(options(), other), ours(options(), kHost);
  theirs.store("kernel", "their code");
  EXPECT_EQ(ours.find("kernel"), std::nullopt);
  const HostDifference difference = ours.nearest_host("kernel");
  EXPECT_EQ(difference.components, "cpu");
  EXPECT_EQ(difference.text, "cpu: there avx9000, here nothing more");
  EXPECT_EQ(ours.nearest_host("another").components, "");
  ours.store("kernel", "our code");
  EXPECT_EQ(ours.find("kernel"), "our code");
  EXPECT_EQ(theirs.find("kernel"), "their code");
}

TEST_F(DiskCacheTest, ThreadsShareOne) {
  DiskCache cache(options(), kHost);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string kernel = "kernel" + std::to_string(i % 10), object(static_cast<size_t>(1000 + i % 10), 'x');
        if (i % 3 == t % 3) cache.store(kernel, object);
        EXPECT_EQ(cache.find(kernel).value_or(object), object);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(warnings_.empty()) << (warnings_.empty() ? "" : warnings_[0]);
}

TEST_F(DiskCacheTest, NothingIsKeptForAHostThatIsNotKnown) {
  DiskCache cache(options(), {{{"build", "7"}, {"cpu", ""}}});
  cache.store("kernel", "code");
  EXPECT_EQ(cache.find("kernel"), std::nullopt);
  EXPECT_FALSE(fs::exists(temp_ / name_));
}

TEST(HostKeyTest, NamesTheDifference) {
  EXPECT_EQ(compare(HostKey::parse("build: 1\ncpu: a b\n"), HostKey::parse("build: 2\ncpu: a c\n")).text,
            "build: there 1, here 2; cpu: there b, here c");
  EXPECT_EQ(compare(HostKey::parse("old: 1\n"), HostKey::parse("new: 2\n")).components, "new, old");
}

TEST(HostKeyTest, AHostWithoutTheCompilerTakesCodeOfAnyVersionOfIt) {
  const HostKey here{{{"target", "cuda sm_90"}, {"nvrtc", ""}}}, with{{{"target", "cuda sm_90"}, {"nvrtc", "12.8"}}};
  EXPECT_TRUE(accepts(here, "target: cuda sm_90\nnvrtc: 13.0\n").ok());
  EXPECT_FALSE(accepts(here, "target: cuda sm_80\nnvrtc: 13.0\n").ok());
  EXPECT_EQ(accepts(with, "target: cuda sm_90\nnvrtc: 13.0\n").message(),
            "made for another host: nvrtc: there 13.0, here 12.8; make the file where these are as they are here");
}

TEST(KernelFileTest, ArtifactsHaveASectionForEachTarget) {
  const std::vector<KernelFile> sections = {some_file(), {"cpu: y\n", {{"kernel", "code"}}}};
  const std::string bytes = pack_artifact(sections);
  const auto back = unpack_artifact(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), 2u);
  EXPECT_EQ((*back)[1].host, "cpu: y\n");
  EXPECT_EQ((*back)[1].kernels[0].object, "code");
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(unpack_artifact(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(unpack_artifact(bytes + "x").ok());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(unpack_artifact(damaged).ok()) << bit;
  }
}

}  // namespace
}  // namespace rondo::io
