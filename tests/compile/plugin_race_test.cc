// The plug-in's file is swapped for another while it is checked and loaded, as fast as it goes. Each race is a process.
//   RONDO_PLUGIN_RACES=200 test_compile --gtest_filter='PluginRace.*'      the long form (plugin_races.sh)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/paths.h"

namespace rondo::compile {
namespace {

namespace fs = std::filesystem;

// The program that a race runs. It prints the outcome.
TEST(PluginRaceChild, DISABLED_Load) {
  try {
    jit_toolchain();
    std::puts("CHILD loaded");
  } catch (const Error& error) {
    std::printf("CHILD %s\n", error.what());
  }
}

class PluginRace : public testing::Test {
 protected:
  void SetUp() override {
    std::string plugin;
    if (jit_available()) jit_toolchain();
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("librondo_jit_llvm") != line.npos) plugin = line.substr(line.find('/'));
    if (plugin.empty()) GTEST_SKIP() << "no plug-in: built with RONDO_STATIC_JIT, or without LLVM";
    ::chmod(folder_.path().c_str(), 0755);
    for (const char* name : {"ours", "theirs"}) fs::create_directory(folder_ / name);
    fs::copy_file(plugin, folder_ / "ours/plugin.so");
    fs::copy_file(tests::kForeignCode, folder_ / "theirs/plugin.so");
    // Larger, so that checking it takes long enough for a swap; what follows the library's own bytes is not loaded.
    for (const char* name : {"ours/plugin.so", "theirs/plugin.so"}) fs::resize_file(folder_ / name, 64 << 20);
    // What makes it foreign in these tests: everybody may have written it.
    ::chmod((folder_ / "ours").c_str(), 0755);
    ::chmod((folder_ / "theirs/plugin.so").c_str(), 0777);
    ::chmod((folder_ / "theirs").c_str(), 0777);
  }

  // One process loads `path` while `swap` runs over and over. True if it loaded our plug-in.
  bool race(const std::string& path, const std::function<void()>& swap) const {
    std::atomic<bool> done = false;
    std::thread swapper([&] {
      while (!done) swap();
    });
    const std::string command =
        "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX RONDO_CACHE=off RONDO_CUDA=off "
        "RONDO_TEST_FOREIGN=" +
        mark_ + " RONDO_JIT_LIBRARY=" + path + " " + fs::read_symlink("/proc/self/exe").string() +
        " --gtest_also_run_disabled_tests --gtest_filter=PluginRaceChild.DISABLED_Load 2>&1";
    std::FILE* pipe = ::popen(command.c_str(), "r");
    std::string output;
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
    EXPECT_EQ(::pclose(pipe), 0) << output;
    done = true;
    swapper.join();
    EXPECT_NE(output.find("CHILD "), std::string::npos) << output;
    return output.find("CHILD loaded") != std::string::npos;
  }

  test::TempFolder folder_;
  const std::string mark_ = folder_ / "foreign_code_ran";
};

TEST_F(PluginRace, NeverRunsWhatWasNotChecked) {
  const auto exchange = [this](const char* a, const char* b) {
    ::renameat2(AT_FDCWD, (folder_ / a).c_str(), AT_FDCWD, (folder_ / b).c_str(), RENAME_EXCHANGE);
  };
  for (const char* name : {"ours", "theirs"})
    fs::create_symlink(folder_ / name, folder_ / (std::string("link_to_") + name));
  const std::vector<std::pair<std::string, std::function<void()>>> kinds = {
      {folder_ / "ours/plugin.so", [&] { exchange("ours", "theirs"); }},
      {folder_ / "ours/plugin.so", [&] { exchange("ours/plugin.so", "theirs/plugin.so"); }},
      {folder_ / "link_to_ours/plugin.so", [&] { exchange("link_to_ours", "link_to_theirs"); }}};
  const char* wanted = std::getenv("RONDO_PLUGIN_RACES");
  const int races = wanted == nullptr ? 6 : std::atoi(wanted);
  int loaded = 0;
  for (int i = 0; i < races; ++i) {
    const auto& [path, swap] = kinds[static_cast<size_t>(i) % kinds.size()];
    loaded += race(path, swap) ? 1 : 0;
    ASSERT_FALSE(fs::exists(mark_)) << "race " << i;
  }
  RecordProperty("loaded", loaded);
}

}  // namespace
}  // namespace rondo::compile
