// Integers, masks and orders in compiled blocks on a CUDA device, whose kernels run on fibers: eager's bits on the
// host, except of what adds floats up, which these blocks do one after the other.
#include "rondo/tests/integer_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/numbers.h"

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

// A tensor and a number: eagerly, where integers run a kernel written from the op's rule, and compiled.
TEST(CudaNumbers, InComparisonsAndSelections) {
  const NoGrad off;
  const Tensor halves = Tensor::from<double>({-1.5, 0.5, 2, 2.5, 0, 3, NAN}, {7});
  for (DType dtype : {kF64, kF32, kBF16, kI64, kI32, kU8, kBool})
    for (const std::string op : test::kNumberOps) {
      SCOPED_TRACE(op + " " + std::string(name_of(dtype)));
      Scalar number = dtype == kBool ? Scalar(true) : is_floating(dtype) ? Scalar(0.5) : Scalar(2);
      const auto fn = [&](const Tensor& x) { return test::apply_number(op, x, number); };
      const Tensor x = is_floating(dtype) ? halves.to(dtype)
                                          : ops::where(ops::isnan(halves), 4.0, ops::abs(halves)).to(dtype);
      const Tensor expected = fn(x);
      test::FakeCuda cuda({.seed = 1});
      test::FnModule compiled(fn);
      const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
      EXPECT_TRUE(test::same_bits(fn(x.to(cuda.device())).to(kCPU), expected));
      EXPECT_TRUE(test::same_bits(compiled(x.to(cuda.device())).to(kCPU), expected));
      EXPECT_EQ(regions.report()[0].kernels, 1);
      EXPECT_EQ(regions.report()[0].eager_runs, 0);
      if (dtype == kI64 && op != "masked_fill") {
        number = (int64_t{1} << 53) + 1;  // no double
        const Tensor large = Tensor::full({7}, number);
        EXPECT_TRUE(test::same_bits(compiled(large.to(cuda.device())).to(kCPU), fn(large)));
      }
    }
}

}  // namespace
}  // namespace rondo
