// Rows of several blocks (Note [Row order]): compiled as eager, bit for bit, for sizes known and unknown.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using test::same_bits;

class RowBlocks : public testing::TestWithParam<compile::Shapes> {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    manual_seed(11);
  }
};

TEST_P(RowBlocks, AsEager) {
  const auto sums = [](const Tensor& x) { return ops::sum(x * 1.5, 1, /*keepdim=*/true) * x; };
  const auto soft = [](const Tensor& x) { return ops::softmax(x * 2.0, 1) + 1.0; };
  const auto variance = [](const Tensor& x) {
    const Tensor centred = x - ops::mean(x, 1, /*keepdim=*/true);
    return ops::mean(centred * centred, 1, /*keepdim=*/true) + ops::max(x, 1, /*keepdim=*/true);
  };
  for (const std::function<Tensor(const Tensor&)>& function :
       {std::function<Tensor(const Tensor&)>(sums), std::function<Tensor(const Tensor&)>(soft),
        std::function<Tensor(const Tensor&)>(variance)}) {
    auto region = compile::compile(function, {.exact = true, .shapes = GetParam(), .recompile_limit = 100});
    for (DType dtype : {kF32, kBF16, kF64})
      for (int64_t n : {40, 4095, 4096, 4097, 4112, 8192, 8200, 8208, 12'289, 50'257}) {
        const Tensor x = Tensor::randn({3, n}).to(dtype);
        const test::MustRunCompiled compiled;
        EXPECT_TRUE(same_bits(region(x), function(x))) << name_of(dtype) << " " << n;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowBlocks, testing::Values(compile::Shapes::kStatic, compile::Shapes::kDynamic));

}  // namespace
}  // namespace rondo
