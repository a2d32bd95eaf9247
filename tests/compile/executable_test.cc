// The JIT as a service: lifetimes, threads, object code that outlives its process, and a plug-in that is not there.
#include <thread>

#include "rondo/runtime/error.h"
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

LoopKernel scale(std::string name, double factor) {
  KernelBuilder b(std::move(name), 1, 100);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(kF32), y = b.dense(kF32, true);
  b.store(y, b.emit(LoopOp::kMul, kF32, b.load(x, kF32), b.constant(factor, kF32)));
  return b.kernel;
}

float run(KernelEntry entry) {
  std::vector<float> x(100, 1.0f), y(100);
  void* operands[] = {x.data(), y.data()};
  entry(operands, nullptr, nullptr, 0, 100);
  EXPECT_EQ(y.front(), y.back());
  return y.front();
}

TEST(Executable, EntriesFollowTheKernels) {
  const std::vector<LoopKernel> kernels{scale("b", 2), scale("a", 3), scale("c", 5)};
  const auto executable = compile_kernels(kernels);
  EXPECT_EQ(run(executable->entry(0)), 2);
  EXPECT_EQ(run(executable->entry(1)), 3);
  EXPECT_EQ(run(executable->entry(2)), 5);
}

TEST(Executable, NamesAreLocalToOne) {
  const LoopKernel two = scale("same", 2), three = scale("same", 3);
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
        const LoopKernel kernel = scale("kernel", t * 10 + i);
        EXPECT_EQ(run(compile_kernels({&kernel, 1})->entry(0)), static_cast<float>(t * 10 + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Executable, EqualKernelsShareCode) {
  const std::vector<LoopKernel> kernels{scale("one", 2), scale("other", 2), scale("third", 3)};
  const auto executable = compile_kernels(kernels);
  EXPECT_EQ(executable->entry(0), executable->entry(1));
  EXPECT_NE(executable->entry(0), executable->entry(2));
  EXPECT_EQ(compile_kernels({&kernels[2], 1})->entry(0), executable->entry(2));
}

TEST(Executable, CodeThatIsForgottenStaysCallable) {
  const LoopKernel kernel = scale("kernel", 2);
  const auto first = compile_kernels({&kernel, 1});
  forget_code();
  const auto second = compile_kernels({&kernel, 1});
  EXPECT_NE(first->entry(0), second->entry(0));
  EXPECT_EQ(run(first->entry(0)), 2);
  EXPECT_EQ(run(second->entry(0)), 2);
}

TEST(Executable, NamesItsToolchain) { EXPECT_NE(jit_toolchain().find("LLVM"), std::string::npos); }

TEST(Executable, RejectsABrokenKernel) {
  LoopKernel kernel = scale("broken", 2);
  kernel.instrs[2].b = 99;
  EXPECT_THROW(compile_kernels({&kernel, 1}), InternalError);
}

TEST(ExecutableDeathTest, SaysWhereItLooked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: here the plug-in may be loaded already
  setenv("RONDO_CACHE", "off", 1);  // read with the first kernel; the fresh process comes by here, too
  setenv("RONDO_JIT_LIBRARY", "/nowhere/librondo_jit_llvm.so", 1);
  const bool linked_in = jit_available();
  unsetenv("RONDO_JIT_LIBRARY");
  if (linked_in) GTEST_SKIP() << "built with RONDO_STATIC_JIT";
  const auto compile_without_plugin = [] {
    setenv("RONDO_JIT_LIBRARY", "/nowhere/librondo_jit_llvm.so", 1);
    try {
      const LoopKernel kernel = scale("kernel", 2);
      compile_kernels({&kernel, 1});
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::exit(3);
    }
    std::exit(4);
  };
  EXPECT_EXIT(compile_without_plugin(), testing::ExitedWithCode(3), "/nowhere/librondo_jit_llvm.so: no such file");
  unsetenv("RONDO_CACHE");
}

}  // namespace
}  // namespace rondo::compile
