// The kernels of this process: found again, compiled once, and forgotten when nobody holds them.
#include "rondo/compile/jit/kernel_table.h"

#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

TEST(KernelTable, ForgetsAllThatNobodyHolds) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  forget_unused_kernels();
  const std::vector<LoopKernel> kernels{scale(2), scale(3), scale(5), scale(2)};
  CompiledKernels held = find_or_compile({&kernels[1], 1}, Sizes::kVarying);
  EXPECT_EQ(held.compiled, 1);
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).compiled, 2);
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).compiled, 0);
  forget_unused_kernels();
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).compiled, 2);
  held = {};
  forget_unused_kernels();
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).compiled, 3);
}

}  // namespace
}  // namespace rondo::compile
