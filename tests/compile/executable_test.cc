// The JIT as a service: lifetimes, threads, object code that outlives its process, and a plug-in that is not there.
#include <thread>

#include "rondo/runtime/error.h"
#include "rondo/tests/compile/kernel_fixture.h"

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

TEST(Executable, NamesItsToolchain) { EXPECT_NE(jit_toolchain().find("LLVM"), std::string::npos); }

TEST(Executable, RejectsABrokenKernel) {
  LoopKernel kernel = scale(2, 100, "broken");
  kernel.instrs[2].b = 99;
  EXPECT_THROW(compile_kernels({&kernel, 1}), InternalError);
}

TEST(ExecutableDeathTest, SaysWhereItLooked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: here the plug-in may be loaded already
  setenv("RONDO_CACHE", "off", 1);                 // read with the first kernel; the fresh process comes by here, too
  setenv("RONDO_JIT_LIBRARY", "/nowhere/librondo_jit_llvm.so", 1);
  const bool linked_in = jit_available();
  unsetenv("RONDO_JIT_LIBRARY");
  if (linked_in) GTEST_SKIP() << "built with RONDO_STATIC_JIT";
  const auto compile_without_plugin = [] {
    setenv("RONDO_JIT_LIBRARY", "/nowhere/librondo_jit_llvm.so", 1);
    try {
      const LoopKernel kernel = scale(2, 100, "kernel");
      compile_kernels({&kernel, 1});
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::exit(3);
    }
    std::exit(4);
  };
  EXPECT_EXIT(compile_without_plugin(), testing::ExitedWithCode(3), "/nowhere/librondo_jit_llvm.so: no such file");
  setenv("RONDO_CACHE", "off", 1);  // as all of these tests run (cache_process_test.cc)
}

}  // namespace
}  // namespace rondo::compile
