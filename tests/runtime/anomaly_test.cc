// DetectAnomaly: which call is named, what passes, and that nothing is left behind.
#include "rondo/runtime/autograd/anomaly.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using autograd::DetectAnomaly;
using test::error_of;
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

Tensor leaf(std::initializer_list<double> values) {
  return Tensor::from<double>(values, {static_cast<int64_t>(values.size())}).requires_grad_();
}
std::string at_line(int line) { return "anomaly_test.cc:" + std::to_string(line); }
#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "got: " << (text)

TEST(Anomaly, TheForwardOpIsNamed) {
  const DetectAnomaly detect;
  Tensor x = leaf({4, 1, -1});
  int line = 0;
  const std::string error = error_of([&] {
    const Tensor a = x * 2.0;
    line = __LINE__ + 1;
    const Tensor b = ops::sqrt(a);
    ops::exp(b);
  });
  EXPECT_MENTIONS(error, "sqrt: the result, f64[3], has a NaN, first at [2]; every operand was finite");
  EXPECT_MENTIONS(error, at_line(line));
}

TEST(Anomaly, InfinityFromFiniteValues) {
  const DetectAnomaly detect;
  EXPECT_MENTIONS(error_of([] { leaf({1, 0}) / leaf({1, 0}); }), "div");
  EXPECT_MENTIONS(error_of([] { ops::log(Tensor::zeros({2, 2})); }), "an infinity, first at [0, 0]");
  EXPECT_MENTIONS(error_of([] { ops::exp(Tensor::full({2}, 1000.0)); }), "exp");
  EXPECT_MENTIONS(error_of([] { Tensor::full({2}, 1e6).to(kF16); }), "cast");
  Tensor target = Tensor::full({2}, 1e38);
  EXPECT_MENTIONS(error_of([&] { target.mul_(1e10); }), "mul");
}

// A mask of -infinity is meant, and what is computed from it; a NaN never is.
TEST(Anomaly, MasksPass) {
  const DetectAnomaly detect;
  Tensor scores = Tensor::ones({2, 3}).requires_grad_();
  const Tensor mask = ops::not_equal(Tensor::from<int64_t>({0, 1, 0, 0, 0, 1}, {2, 3}), Tensor::scalar<int64_t>(0));
  ops::sum(ops::softmax(ops::masked_fill(scores, mask, -kInf), -1)).backward();
  ops::sum(ops::softmax(scores + ops::masked_fill(Tensor::zeros({2, 3}), mask, -kInf), -1)).backward();
  Tensor filled = Tensor::zeros({3}).fill_(kInf);
  filled.add_(1.0).mul_(2.0);
  const std::string error = error_of([&] {
    ops::softmax(ops::masked_fill(scores, ops::not_equal(mask, mask), 0) + Tensor::full({2, 3}, -kInf), -1);
  });
  EXPECT_MENTIONS(error, "softmax");
  EXPECT_MENTIONS(error, "operand 0, f32[2, 3], had an infinity");
}

TEST(Anomaly, ANaNOfTheData) {
  const DetectAnomaly detect;
  const Tensor data = Tensor::from<double>({1, kNaN}, {2});
  const std::string error = error_of([&] { data * 2.0; });
  EXPECT_MENTIONS(error, "operand 0, f64[2], had a NaN");
  EXPECT_EQ(error_of([&] { ops::where(ops::not_equal(data, data), Tensor::zeros({2}, {kF64}), data); }), "");
  EXPECT_EQ(error_of([&] { data.view({1, 2}).t(); }), "");
  EXPECT_EQ(error_of([&] { data.to_vector<float>(); }), "");
}

TEST(Anomaly, TheGradientRuleIsNamed) {
  const DetectAnomaly detect;
  Tensor x = leaf({4, 0, 1});
  const int line = __LINE__ + 1;
  const Tensor y = ops::sqrt(x * 1.0);
  const std::string error = error_of([&] { ops::sum(y).backward(); });
  EXPECT_MENTIONS(error, "backward of sqrt: the gradient of operand 0, f64[3], has an infinity, first at [1]");
  EXPECT_MENTIONS(error, at_line(line));
  // 0 * infinity
  const std::string second = error_of([&] { ops::sum(ops::sqrt(x) * 0.0).backward(); });
  EXPECT_MENTIONS(second, "backward of sqrt: the gradient of operand 0, f64[3], has a NaN, first at [1]");
}

TEST(Anomaly, AForwardOutsideOfTheScope) {
  Tensor x = leaf({4, 0, 1});
  const Tensor y = ops::sum(ops::sqrt(x));
  const DetectAnomaly detect;
  const std::string error = error_of([&] { y.backward(); });
  EXPECT_MENTIONS(error, "backward of sqrt");
  EXPECT_MENTIONS(error, "its forward ran outside of DetectAnomaly");
}

TEST(Anomaly, SumsOfGradients) {
  const DetectAnomaly detect;
  Tensor x = Tensor::full({2}, 0.01, {kF16}).requires_grad_();
  const Tensor y = x * 1.0, big = Tensor::full({2}, 60000.0, {kF16});
  const std::string fan_in = error_of([&] { (ops::sum(y * big) + ops::sum(y * big)).backward(); });
  EXPECT_MENTIONS(fan_in, "the sum of the arriving gradients, f16[2], has an infinity");
  x.zero_grad();
  x.backward(big);
  EXPECT_MENTIONS(error_of([&] { x.backward(big); }), "the .grad of a leaf, f16[2], has an infinity");
}

TEST(Anomaly, WhatTheCallerPassedIn) {
  const DetectAnomaly detect;
  Tensor x = leaf({1, 2});
  EXPECT_MENTIONS(error_of([&] {
                    (x * x).backward(Tensor::from<double>({1, kNaN}, {2}));
                  }),
                  "the arriving gradient, f64[2], had a NaN");
}

TEST(Anomaly, ACheckpointNamesTheOpInside) {
  const DetectAnomaly detect;
  Tensor x = leaf({4, 0});
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint([](std::span<const Tensor> t) { return std::vector<Tensor>{ops::sqrt(t[0])}; },
                                        in)[0];
  EXPECT_MENTIONS(error_of([&] { ops::sum(y).backward(); }), "backward of sqrt");
}

TEST(Anomaly, SecondDerivatives) {
  const DetectAnomaly detect;
  Tensor x = leaf({0, 1});
  const Tensor y = ops::sum(ops::sqrt(x) * x), in[] = {x};
  const std::string error = error_of([&] {
    const Tensor g = ops::sum(autograd::grad({&y, 1}, in, {}, false, true)[0]);
    autograd::grad({&g, 1}, in);
  });
  EXPECT_MENTIONS(error, "backward of sqrt");
}

TEST(Anomaly, AutocastIsChecked) {
  const DetectAnomaly detect;
  const amp::Autocast autocast(kF16);
  EXPECT_MENTIONS(error_of([] { ops::matmul(Tensor::full({2, 2}, 300.0), Tensor::full({2, 2}, 300.0)); }), "matmul");
}

TEST(Anomaly, ScopesNestAndEnd) {
  EXPECT_FALSE(autograd::detecting_anomaly());
  Tensor x = leaf({-1});
  {
    const DetectAnomaly detect;
    {
      const DetectAnomaly off(false);
      EXPECT_EQ(error_of([&] { ops::sqrt(x); }), "");
    }
    EXPECT_NE(error_of([&] { ops::sqrt(x); }), "");
    EXPECT_TRUE(autograd::detecting_anomaly());
    EXPECT_NE(error_of([&] { ops::sqrt(x); }), "") << "the scope is as it was after a throw";
    std::thread([] { EXPECT_FALSE(autograd::detecting_anomaly()); }).join();
  }
  EXPECT_EQ(error_of([&] { ops::sqrt(x); }), "");
}

// Nothing changes by looking.
TEST(Anomaly, ResultsAreTheSame) {
  const auto run = [] {
    Tensor x = leaf({0.5, 2, 3}), w = leaf({1, 2, 3});
    Tensor y = ops::gelu(x * w);
    y.slice(0, {0, 2}).mul_(2.0);
    ops::sum(ops::softmax(y, 0) * y).backward();
    std::vector<double> values = x.grad().to_vector<double>();
    for (double v : w.grad().to_vector<double>()) values.push_back(v);
    return values;
  };
  const std::vector<double> plain = run();
  const DetectAnomaly detect;
  EXPECT_EQ(run(), plain);
}

// Every op on ordinary values, forward and backward: nothing is reported that is none.
TEST(Anomaly, NoFalseAlarms) {
  for (const test::OpSpec& spec : test::op_specs()) {
    const OpDef& op = *find_op(spec.name);
    for (const test::OpSample& sample : test::samples_of(spec)) {
      std::vector<Tensor> inputs = sample.inputs_as(kF32);
      const auto run = [&] {
        const std::vector<Tensor> outputs = test::apply_op(op, inputs, sample.attrs, sample.n_outputs);
        if (!outputs[0].defined() || !outputs[0].requires_grad() || op.grad == nullptr) return outputs;
        outputs[0].backward(Tensor::ones(outputs[0].sizes(), {outputs[0].dtype()}));
        return outputs;
      };
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined() && is_floating(inputs[i].dtype()) && op.overwrites < 0 && !spec.is_constant(i))
          inputs[i].requires_grad_();
      bool finite = true;
      for (const Tensor& output : run()) {
        if (!output.defined() || !is_floating(output.dtype())) continue;
        for (double value : output.to_vector<double>()) finite = finite && std::isfinite(value);
      }
      for (const Tensor& input : inputs) {
        if (!input.defined() || !input.grad().defined()) continue;
        for (double value : input.grad().to_vector<double>()) finite = finite && std::isfinite(value);
      }
      const DetectAnomaly detect;
      const std::string error = error_of([&] { run(); });
      EXPECT_TRUE(!finite || error.empty()) << spec.name << " " << sample.label << ": " << error;
    }
  }
}

TEST(Anomaly, RowsOfAttentionWithoutAKey) {
  const DetectAnomaly detect;
  Tensor q = Tensor::ones({1, 1, 2, 4}).requires_grad_();
  const Tensor none = ops::not_equal(Tensor::zeros({2, 2}), Tensor::zeros({2, 2}));
  EXPECT_EQ(error_of([&] { ops::sum(ops::scaled_dot_product_attention(q, q, q, none)).backward(); }), "");
}

TEST(Anomaly, EmptyAndIntegerTensors) {
  const DetectAnomaly detect;
  Tensor x = Tensor::zeros({0, 3}).requires_grad_();
  ops::sum(x * 2.0).backward();
  EXPECT_EQ(error_of([] { ops::add(Tensor::arange(3), Tensor::arange(3)); }), "");
}

}  // namespace
}  // namespace rondo
