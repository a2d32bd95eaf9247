// Regions under autocast: parameters are multiplied with as their 16-bit copies (runtime/ops/lowered.h), which no
// kernel makes.
#include <gtest/gtest.h>

#include "rondo/runtime/ops/lowered.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using namespace test;

class AutocastRegions : public BlockTest {};

Tensors linear_body(Block& b, const Tensor& x) { return {ops::linear(x, b.weight, b.bias)}; }

// Steps with weights that change in between, as eager takes them, in every bit.
TEST_F(AutocastRegions, CopiesFollowTheParameters) {
  for (const DType dtype : {kBF16, kF16}) {
    expect_as_eager(linear_body, [dtype](Block& b) {
      Tensors all;
      for (int step = 0; step < 4; ++step) {
        const amp::Autocast lower(dtype);
        for (Tensor& t : train_step(b, input())) all.push_back(t);
        no_grad([&] {
          for (Tensor p : b.parameters())
            if (p.grad().defined()) p.sub_(p.grad() * 0.1);
        });
      }
      return all;
    });
    // The forward and backward cast what arrives and what leaves; not the weights.
    EXPECT_LE(report.kernels, 6);
  }
}

TEST_F(AutocastRegions, NoKernelCastsAParameter) {
  const Tensor x = Tensor::randn({4, 6}).to(kBF16);
  manual_seed(3);
  Block block(linear_body);
  const compile::Regions regions = compile::compile_module(block);
  const NoGrad off;
  const amp::Autocast lower(kBF16);
  block(x);
  EXPECT_EQ(regions.report()[0].kernels, 0);
  EXPECT_EQ(regions.report()[0].library_calls, 1);
  EXPECT_EQ(amp::copy_in_use(block.weight), kBF16);
}

// What the caller gets is his: writing to it changes no copy.
TEST_F(AutocastRegions, ACopyThatIsReturnedIsAnother) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::linear(x, b.weight, Tensor()), b.weight.to(kBF16)};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int step = 0; step < 2; ++step) {
      const NoGrad off;
      const amp::Autocast lower(kBF16);
      Tensors results = b(Tensor::randn({4, 6}));
      for (const Tensor& t : results) all.push_back(t.clone());
      results[1].fill_(7.0);
    }
    return all;
  });
}

// Parts and other layouts of a parameter have no copy of their own, and tied weights share theirs.
TEST_F(AutocastRegions, PartsAndTransposesOfParameters) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::matmul(ops::matmul(x, b.weight), b.weight.t());
    return Tensors{ops::linear(h, b.weight.slice(0, {1, 4}), b.bias.slice(0, {1, 4}))};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int step = 0; step < 3; ++step) {
      const amp::Autocast lower(kBF16);
      for (Tensor& t : train_step(b, input())) all.push_back(t);
      no_grad([&] { b.weight.mul_(0.5); });
    }
    return all;
  });
}

// Between a forward and its backward a parameter may not change: loud, and never another copy's numbers.
TEST_F(AutocastRegions, AParameterThatChangedBeforeItsBackward) {
  const MeansToRun eagerly(Eagerly::kBackward, "memory is overwritten before the backward");
  manual_seed(3);
  Block block(linear_body);
  const compile::Regions regions = compile::compile_module(block);
  const Tensor x = input();
  Tensor loss;
  {
    const amp::Autocast lower(kBF16);
    loss = ops::sum(block(x)[0].to(kF32));
  }
  no_grad([&] { block.weight.fill_(1.0); });
  EXPECT_THROW(loss.backward(), StaleTensorError);
}

}  // namespace
}  // namespace rondo
