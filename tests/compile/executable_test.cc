// The JIT as a service: lifetimes, threads, object code that outlives its process, and a plug-in that is not there.
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "rondo/compile/jit/build_hash.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/tests/compile/kernel_fixture.h"
#include "rondo/tests/compile/temp_folder.h"

namespace rondo::compile {
namespace {

float run(KernelEntry entry) {
  std::vector<float> x(100, 1.0f), y(100);
  void* operands[] = {x.data(), y.data()};
  entry(operands, nullptr, nullptr, 0, 100);
  EXPECT_EQ(y.front(), y.back());
  return y.front();
}

TEST(Executable, EntriesFollowTheKernels) {
  const std::vector<LoopKernel> kernels{scale(2, 100, "b"), scale(3, 100, "a"), scale(5, 100, "c")};
  const auto executable = compile_kernels(kernels);
  EXPECT_EQ(run(executable->entry(0)), 2);
  EXPECT_EQ(run(executable->entry(1)), 3);
  EXPECT_EQ(run(executable->entry(2)), 5);
}

TEST(Executable, NamesAreLocalToOne) {
  const LoopKernel two = scale(2, 100, "same"), three = scale(3, 100, "same");
  const auto first = compile_kernels({&two, 1});
  auto second = compile_kernels({&three, 1});
  EXPECT_EQ(run(second->entry(0)), 3);
  second.reset();
  EXPECT_EQ(run(first->entry(0)), 2);
}

TEST(Executable, ThreadsCompileAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 8; ++i) {
        const LoopKernel kernel = scale(t * 10 + i, 100, "kernel");
        EXPECT_EQ(run(compile_kernels({&kernel, 1})->entry(0)), static_cast<float>(t * 10 + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Executable, EqualKernelsShareCode) {
  const std::vector<LoopKernel> kernels{scale(2, 100, "one"), scale(2, 100, "other"), scale(3, 100, "third")};
  const auto executable = compile_kernels(kernels);
  EXPECT_EQ(executable->entry(0), executable->entry(1));
  EXPECT_NE(executable->entry(0), executable->entry(2));
  EXPECT_EQ(compile_kernels({&kernels[2], 1})->entry(0), executable->entry(2));
}

TEST(Executable, CodeThatIsForgottenStaysCallable) {
  const LoopKernel kernel = scale(2, 100, "kernel");
  const auto first = compile_kernels({&kernel, 1});
  forget_code();
  const auto second = compile_kernels({&kernel, 1});
  EXPECT_NE(first->entry(0), second->entry(0));
  EXPECT_EQ(run(first->entry(0)), 2);
  EXPECT_EQ(run(second->entry(0)), 2);
}

#ifndef RONDO_STATIC_JIT

// Bytes of LLVM's file that this process has mapped pages of, without those that it has written to.
int64_t resident_code() {
  std::ifstream maps("/proc/self/smaps");
  bool llvm = false;
  int64_t kilobytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) llvm = line.find("libLLVM") != std::string::npos;
    else if (llvm && line.starts_with("Rss:")) kilobytes += std::stoll(line.substr(4));
    else if (llvm && line.starts_with("Anonymous:")) kilobytes -= std::stoll(line.substr(10));
  }
  return kilobytes << 10;
}

TEST(Executable, TheCompilerRests) {
  constexpr int64_t kLittle = 2 << 20;
  const auto compile = [](float factor) {
    const LoopKernel kernel = scale(factor, 100, "kernel");
    EXPECT_EQ(run(compile_kernels({&kernel, 1})->entry(0)), factor);
  };
  forget_code();
  compile(1717);
  if (resident_code() == 0) GTEST_SKIP() << "LLVM is no shared library here, or code came from a cache";
  EXPECT_GT(resident_code(), kLittle);
  memory::trim();
  EXPECT_LT(resident_code(), kLittle);
  compile(1718);
  EXPECT_GT(resident_code(), kLittle);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // blocks are the sanitizer's
  // Memory that grows right after a compilation is a first step's; later, the compiler gives way.
  const int64_t more = 2 * allocator::stats().bytes_reserved + (64 << 20);
  std::this_thread::sleep_for(std::chrono::milliseconds(80));
  Storage::allocate(static_cast<size_t>(more));
  EXPECT_LT(resident_code(), kLittle);
  compile(1719);
#endif
}

#endif

TEST(Executable, NamesItsToolchain) { EXPECT_NE(jit_toolchain().find("LLVM"), std::string::npos); }

TEST(Executable, RejectsABrokenKernel) {
  LoopKernel kernel = scale(2, 100, "broken");
  kernel.instrs[2].b = 99;
  EXPECT_THROW(compile_kernels({&kernel, 1}), InternalError);
}

// ---- The plug-in: loaded from one place, after the checks that cached code gets

class ExecutableDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: here the plug-in may be loaded already
    setenv("RONDO_CACHE", "off", 1);                 // read with the first kernel; the fresh process comes by here, too
    plugin_ = path_of_plugin();
    if (plugin_.empty()) GTEST_SKIP() << "no plug-in: built with RONDO_STATIC_JIT, or without LLVM";
    copy_ = folder_ / "librondo_jit_llvm.so";
    chmod(folder_.path().c_str(), 0755);
    std::filesystem::copy_file(plugin_, copy_);
    chmod(copy_.c_str(), 0755);
  }
  void TearDown() override {
    unsetenv("RONDO_JIT_LIBRARY");
    std::filesystem::current_path(started_in_);  // the folder of the test goes, and processes need one that exists
  }

  // Compiles a kernel with RONDO_JIT_LIBRARY = path: exit code 0, or 3 with the error's text on stderr.
  [[noreturn]] static void compile_with(const std::string& path) {
    setenv("RONDO_JIT_LIBRARY", path.c_str(), 1);
    try {
      const LoopKernel kernel = scale(2, 100, "kernel");
      std::exit(run(compile_kernels({&kernel, 1})->entry(0)) == 2 ? 0 : 4);
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::exit(3);
    }
  }
  // The file that is mapped into this process. The fresh process is told, since it must not have loaded one.
  static std::string path_of_plugin() {
    if (const char* told = std::getenv("RONDO_TEST_PLUGIN"); told != nullptr) return told;
    if (!jit_available()) return "";
    jit_toolchain();
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (const size_t slash = line.find('/'); slash != line.npos && line.find("librondo_jit_llvm") != line.npos)
        setenv("RONDO_TEST_PLUGIN", line.c_str() + slash, 1);
    const char* found = std::getenv("RONDO_TEST_PLUGIN");
    return found == nullptr ? "" : found;
  }

  const std::filesystem::path started_in_ = std::filesystem::current_path();
  test::TempFolder folder_;
  std::string plugin_, copy_;
};

TEST_F(ExecutableDeathTest, LoadsAPlugInThatIsNamed) {
  EXPECT_EXIT(compile_with(copy_), testing::ExitedWithCode(0), "");
}

TEST_F(ExecutableDeathTest, SaysWhereItLooked) {
  EXPECT_EXIT(compile_with("/nowhere/librondo_jit_llvm.so"), testing::ExitedWithCode(3),
              "/nowhere/librondo_jit_llvm.so: no such file");
}

// The dynamic linker would search LD_LIBRARY_PATH and run paths for a name, and the working directory for a path.
TEST_F(ExecutableDeathTest, SearchesNothing) {
  setenv("LD_LIBRARY_PATH", folder_.path().c_str(), 1);
  EXPECT_EXIT(compile_with("librondo_jit_llvm.so"), testing::ExitedWithCode(3), "the path is not absolute");
  unsetenv("LD_LIBRARY_PATH");
  std::filesystem::current_path(folder_.path());
  EXPECT_EXIT(compile_with("./librondo_jit_llvm.so"), testing::ExitedWithCode(3), "the path is not absolute");
}

TEST_F(ExecutableDeathTest, RefusesAPlugInThatOthersCanWrite) {
  chmod(copy_.c_str(), 0775);
  EXPECT_EXIT(compile_with(copy_), testing::ExitedWithCode(3), "others than its owner may write to it");
  chmod(copy_.c_str(), 0755);
  chmod(folder_.path().c_str(), 0777);
  EXPECT_EXIT(compile_with(copy_), testing::ExitedWithCode(3), "its folder is not safe: .*: others than its owner");
}

// It must not even be mapped: its constructors would run.
TEST_F(ExecutableDeathTest, RefusesAPlugInOfAnotherBuild) {
  std::fstream file(copy_, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string mark = build_mark();
  for (size_t at = bytes.find(mark); at != bytes.npos; at = bytes.find(mark)) bytes[at + mark.size() - 1] ^= 1;
  file.seekp(0);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  EXPECT_EXIT(compile_with(copy_), testing::ExitedWithCode(3), "it belongs to another build of Rondo");
}

}  // namespace
}  // namespace rondo::compile
