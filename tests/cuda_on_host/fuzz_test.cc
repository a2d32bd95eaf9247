// The kernels of random programs on the CUDA target, in three orders of threads.
#include "rondo/compile/jit/executable.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/cuda_on_host/emitted.h"
#include "rondo/tests/cuda_on_host/fuzz_kernels.h"

namespace rondo::compile::cuda {
namespace {

// The kernels of 150 programs from `seed` on.
void check_kernels_of_programs(uint64_t seed) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  if (!jit_available()) GTEST_SKIP() << "built without LLVM: programs are not compiled";
  const FuzzKernels made = fuzz_kernels(seed, 150);
  EXPECT_EQ(made.programs, 150);
  Batch batch;
  int reductions = 0, column_sums = 0, elementwise = 0;
  for (size_t i = 0; i < made.kernels.size(); ++i) {
    LoopKernel kernel = made.kernels[i];
    split(kernel);
    bool reduces = false, sums = false;
    for (const Instr& instr : kernel.instrs) {
      reduces = reduces || is_reduction(instr.op);
      sums = sums || is_column_reduction(instr.op);
    }
    reductions += reduces;
    column_sums += sums;
    elementwise += !reduces && !sums;
    RunOptions options;
    for (int32_t s = 0; s < kernel.n_scalars; ++s) options.scalars.push_back(0.25 + 0.5 * s);
    batch.add(kernel, options, i % 3 == 2 ? Batch::Sizes::kDynamic : Batch::Sizes::kConstant);
  }
  std::printf("%zu kernels of %d programs: %d elementwise, %d with row reductions, %d with column sums\n",
              made.kernels.size(), made.programs, elementwise, reductions, column_sums);
  EXPECT_GT(elementwise, 100);
  EXPECT_GT(reductions, 30);
  EXPECT_GT(column_sums, 30);
  batch.check();
}

TEST(CudaFuzz, KernelsOfPrograms) { check_kernels_of_programs(0); }
// tests/nightly.sh runs these.
TEST(CudaFuzz, DISABLED_KernelsOfMorePrograms) { check_kernels_of_programs(1000); }

}  // namespace
}  // namespace rondo::compile::cuda
