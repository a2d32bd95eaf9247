// Integers, masks and orders in compiled blocks on a CUDA device, whose kernels run on fibers: eager's bits on the
// host, except of what adds floats up, which these blocks do one after the other.
#include "rondo/tests/integer_blocks.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

TEST(CudaIntegerBlocks, RunInKernelsWithTheHostsBits) {
  const NoGrad off;
  for (const test::IntegerBlock& block : test::integer_blocks()) {
    SCOPED_TRACE(block.name);
    const Tensor expected = block.fn(block.x);
    test::FakeCuda cuda({.seed = 1});
    test::FnModule compiled(block.fn);
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
    EXPECT_TRUE(test::same_bits(compiled(block.x.to(cuda.device())).to(kCPU), expected));
    const compile::RegionReport report = regions.report()[0];
    EXPECT_EQ(report.kernels, block.kernels);
    EXPECT_EQ(report.library_calls, 0);
    EXPECT_EQ(report.graph_breaks, 0);
    EXPECT_EQ(report.eager_runs, 0);
  }
}

}  // namespace
}  // namespace rondo
