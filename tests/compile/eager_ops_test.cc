// Eager calls as generated kernels, on a device that has none of its own.
#include "rondo/compile/exec/eager_ops.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using compile::eager_ops_report;
using test::FakeDevice;
using test::same_bits;

class EagerOps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::test_device() != kCPU) GTEST_SKIP() << "makes a fake device of its own";
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

// Every op that has a lowering, in every sample: the bits of the host's kernels.
TEST_F(EagerOps, EqualTheHostsKernels) {
  FakeDevice fake({.seed = 3, .generates = true});
  const int64_t before = eager_ops_report().calls;
  int lowered = 0;
  for (const OpDef* op : all_ops()) {
    const test::OpSpec* spec = test::find_spec(op->name);
    if (op->lower == nullptr || spec == nullptr) continue;
    ++lowered;
    for (const test::OpSample& sample : test::samples_of(*spec)) {
      for (const DType dtype : {kF32, kF64, kBF16}) {
        SCOPED_TRACE(std::string(op->name) + ": " + sample.label + " " + std::string(name_of(dtype)));
        const std::vector<Tensor> here = sample.inputs_as(dtype);
        std::vector<Tensor> there;
        for (const Tensor& input : here) there.push_back(input.defined() ? input.to(fake.device()) : input);
        const NoGrad off;
        const std::vector<Tensor> expected = test::apply_op(*op, here, sample.attrs, sample.n_outputs),
                                  got = test::apply_op(*op, there, sample.attrs, sample.n_outputs);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(same_bits(got[i].to(kCPU), expected[i])) << i;
      }
    }
  }
  EXPECT_GT(lowered, 30);
  EXPECT_GT(eager_ops_report().calls - before, lowered);
}

// Sizes are read when a kernel runs: the second size of a kind may need another kernel, further ones never do.
TEST_F(EagerOps, NeverAKernelForEachSize) {
  FakeDevice fake({.generates = true});
  const auto run = [&](int64_t rows, int64_t cols) {
    const Tensor x = Tensor::randn({rows, cols}), bias = Tensor::randn({cols});
    const Tensor a = x.to(fake.device()), b = bias.to(fake.device());
    EXPECT_TRUE(same_bits((ops::gelu(a + b) * 0.5).to(kCPU), ops::gelu(x + bias) * 0.5));
    EXPECT_TRUE(same_bits(a.sum({-1}).to(kCPU), x.sum({-1})));
    EXPECT_TRUE(same_bits(a.t().clone().to(kCPU), x.t().clone()));
  };
  run(5, 7);
  run(33, 50);
  const auto before = eager_ops_report();
  for (const int64_t n : {6, 13, 64, 200, 1000}) run(n + 3, n);
  const auto after = eager_ops_report();
  EXPECT_EQ(after.compiled, before.compiled);
  EXPECT_GT(after.calls, before.calls);
}

TEST_F(EagerOps, FactorsAreArguments) {
  FakeDevice fake({.generates = true});
  const Tensor x = Tensor::randn({9, 5}), there = x.to(fake.device());
  EXPECT_TRUE(same_bits((there * 0.25).to(kCPU), x * 0.25));
  const auto before = eager_ops_report();
  for (int i = 1; i < 20; ++i) EXPECT_TRUE(same_bits((there * (0.1 * i)).to(kCPU), x * (0.1 * i)));
  EXPECT_EQ(eager_ops_report().plans, before.plans);
}

TEST_F(EagerOps, InPlaceAndStrided) {
  FakeDevice fake({.generates = true});
  const Tensor x = Tensor::randn({6, 8});
  const auto write = [](Tensor t, const Tensor& other) {
    t.t()[3].add_(1.5);
    t.slice(1, {0, 8, 2}).mul_(other.slice(0, {0, 8, 2}));
    return t;
  };
  const Tensor row = Tensor::randn({8});
  EXPECT_TRUE(same_bits(write(x.to(fake.device()), row.to(fake.device())).to(kCPU), write(x.clone(), row)));
}

TEST_F(EagerOps, Training) {
  const auto train = [](Device device) {
    const DeviceScope scope(device);
    Tensor w = (Tensor::arange(64).to(kF32) * 0.01).view({8, 8}).to(device).requires_grad_();
    for (int step = 0; step < 5; ++step) {
      const Tensor x = Tensor::ones({4, 8}) * (0.1 * step);
      (ops::softmax(ops::gelu(x.matmul(w) + 0.5), -1) * Tensor::arange(8).to(kF32)).sum().backward();
      no_grad([&] { w.sub_(w.grad() * 0.1); });
      w.zero_grad();
    }
    return w.detach().to(kCPU);
  };
  const Tensor expected = train(kCPU);
  FakeDevice fake({.seed = 2, .generates = true});
  EXPECT_TRUE(same_bits(train(fake.device()), expected));
}

// The eager results that a region's are compared with come from generated kernels here, which are not checked in turn.
TEST_F(EagerOps, AreWhatCompiledRegionsAreCheckedAgainst) {
  FakeDevice fake({.seed = 4, .generates = true});
  auto f = compile::compile([](const Tensor& x) { return ops::exp(ops::tanh(x) * 0.5) * 2.0; }, {.exact = true});
  const Tensor x = Tensor::randn({3, 5});
  const NoGrad off;
  const Tensor expected = ops::exp(ops::tanh(x) * 0.5) * 2.0, there = x.to(fake.device());
  const int64_t before = eager_ops_report().calls;
  compile::set_check_units(true);
  const Tensor got = f(there);
  compile::set_check_units(false);
  EXPECT_GT(eager_ops_report().calls, before);
  EXPECT_TRUE(same_bits(got.to(kCPU), expected));
}

}  // namespace
}  // namespace rondo
