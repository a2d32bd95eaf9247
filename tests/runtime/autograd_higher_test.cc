// Second derivatives and activation checkpointing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;

class HigherAutograd : public testing::Test {
 protected:
  void SetUp() override {
    allocator::set_poison_on_free(true);
    manual_seed(23);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

using Fn = std::function<Tensor(std::span<const Tensor>)>;

// The gradient of <gradient of fn's weighted sum, random directions>, against central differences of the gradient.
void check_second_derivatives(const char* what, const Fn& fn, const std::vector<Tensor>& at) {
  SCOPED_TRACE(what);
  std::vector<Tensor> directions;
  for (size_t i = 0; i < at.size(); ++i) directions.push_back(Tensor::randn(at[i].sizes(), {kF64}));
  const Tensor weights = no_grad([&] { return Tensor::randn(fn(at).sizes(), {kF64}); });
  // <gradient, directions> at a point, as a tensor with history if asked.
  auto slope = [&](const std::vector<Tensor>& leaves, bool create_graph) {
    const Tensor loss = ops::sum(fn(leaves) * weights);
    const auto grads = autograd::grad({&loss, 1}, leaves, {}, false, create_graph);
    Tensor total;
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor part = ops::sum(grads[i] * directions[i]);
      total = total.defined() ? total + part : part;
    }
    return total;
  };
  auto leaves_at = [&](const std::vector<Tensor>& points) {
    std::vector<Tensor> leaves;
    for (const Tensor& p : points) leaves.push_back(p.clone().requires_grad_());
    return leaves;
  };
  const std::vector<Tensor> leaves = leaves_at(at);
  const Tensor first = slope(leaves, true);
  ASSERT_TRUE(first.requires_grad()) << "the gradient has no history";
  const auto second = autograd::grad({&first, 1}, leaves, {}, false, false, true);
  for (size_t i = 0; i < at.size(); ++i) {
    const Tensor move = Tensor::randn(at[i].sizes(), {kF64});
    auto shifted = [&](double step) {
      std::vector<Tensor> points = at;
      points[i] = points[i] + move * step;
      return slope(leaves_at(points), false).item();
    };
    const double numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
    const double analytic = second[i].defined() ? ops::sum(second[i] * move).item() : 0;
    EXPECT_NEAR(analytic, numeric, 2e-6 * (1 + std::abs(numeric))) << "operand " << i;
  }
}

Tensor random(const Dims& sizes) { return Tensor::randn(sizes, {kF64}); }

TEST_F(HigherAutograd, SecondDerivatives) {
  check_second_derivatives("mul", [](auto in) { return in[0] * in[1] * in[0]; }, {random({3, 2}), random({2})});
  check_second_derivatives("div", [](auto in) { return in[0] / (in[1] * in[1] + 1.0); }, {random({3, 2}), random({2})});
  check_second_derivatives("exp", [](auto in) { return ops::exp(in[0]); }, {random({5})});
  check_second_derivatives("log, sqrt, rsqrt",
                           [](auto in) {
                             const Tensor x = in[0] * in[0] + 1.0;
                             return ops::log(x) * ops::sqrt(x) + ops::rsqrt(x);
                           },
                           {random({5})});
  check_second_derivatives("rdiv", [](auto in) { return 2.0 / (in[0] * in[0] + 1.0); }, {random({5})});
  check_second_derivatives("tanh, sigmoid, erf",
                           [](auto in) { return ops::tanh(in[0]) + ops::sigmoid(in[0]) * ops::erf(in[0]); },
                           {random({5})});
  check_second_derivatives("relu", [](auto in) { return ops::relu(in[0]) * in[0]; }, {random({5})});
  check_second_derivatives("gelu tanh", [](auto in) { return ops::gelu(in[0]); }, {random({7})});
  check_second_derivatives("gelu erf", [](auto in) { return ops::gelu(in[0], ops::GeluKind::kErf); }, {random({7})});
  check_second_derivatives("softmax", [](auto in) { return ops::softmax(in[0]); }, {random({3, 5})});
  check_second_derivatives("log_softmax", [](auto in) { return ops::log_softmax(in[0]); }, {random({3, 5})});
  check_second_derivatives("layer_norm", [](auto in) { return ops::layer_norm(in[0], in[1], in[2]); },
                           {random({3, 5}), random({5}), random({5})});
  check_second_derivatives("matmul", [](auto in) { return ops::matmul(in[0], in[1]); },
                           {random({3, 4}), random({4, 2})});
  check_second_derivatives("batched matmul", [](auto in) { return ops::matmul(in[0], in[1]); },
                           {random({2, 3, 4}), random({4, 2})});
  check_second_derivatives("linear",
                           [](auto in) {
                             return ops::linear(in[0], in[1], in[2]) * in[0].slice(1, {0, 2});
                           },
                           {random({3, 4}), random({2, 4}), random({2})});
  check_second_derivatives("max", [](auto in) { return ops::max(in[0], {1}) * ops::sum(in[0], {1}); },
                           {random({3, 4})});
  check_second_derivatives("views",
                           [](auto in) {
                             const auto parts = ops::split(in[0], 2, 1);
                             const Tensor joined[] = {parts[1].t(), parts[0].t() * parts[1].t()};
                             return ops::cat(joined, 0).slice(0, {1, 4, 2}) * in[0][0].slice(0, {0, 3}).expand({2, 3});
                           },
                           {random({3, 4})});
  check_second_derivatives("embedding",
                           [](auto in) {
                             const Tensor rows = ops::embedding(in[0], Tensor::from<int64_t>({0, 2, 2}, {3}));
                             return rows * rows;
                           },
                           {random({4, 2})});
  check_second_derivatives("where",
                           [](auto in) { return ops::where(ops::less(in[0], in[1]), in[0] * in[1], in[1] * in[1]); },
                           {random({6}), random({6})});
  check_second_derivatives("tril, triu",
                           [](auto in) { return ops::tril(in[0] * in[1], 1) * ops::triu(in[0], -1) * in[1]; },
                           {random({2, 3, 4}), random({3, 4})});
  check_second_derivatives("plain attention",
                           [](auto in) { return ops::plain_attention(in[0], in[1], in[2], {}, {.causal = true}); },
                           {random({1, 2, 3, 4}), random({1, 2, 3, 4}), random({1, 2, 3, 4})});
}

// A query that may attend to nothing: the result and its gradients are 0 in both, not NaN.
TEST_F(HigherAutograd, PlainAttentionOfEmptyRowsIsThatOfTheFusedOp) {
  const Tensor mask = Tensor::from<bool>({true, true, false, false, false, false, true, false, true}, {3, 3});
  Tensor results[2][4];
  for (const bool plain : {false, true}) {
    Tensor operands[3];
    for (int i = 0; i < 3; ++i) {
      Generator generator(static_cast<uint64_t>(i));
      operands[i] = Tensor::randn({1, 2, 3, 4}, {kF64}, &generator).requires_grad_();
    }
    const auto& [q, k, v] = operands;
    const Tensor y = plain ? ops::plain_attention(q, k, v, mask) : ops::scaled_dot_product_attention(q, k, v, mask);
    ops::sum(y * y * y).backward();
    results[plain][0] = y.detach();
    for (int i = 0; i < 3; ++i) results[plain][i + 1] = operands[i].grad();
  }
  for (int i = 0; i < 4; ++i) {
    const Tensor difference = ops::max(ops::abs(results[0][i] - results[1][i]));
    EXPECT_LT(difference.item(), 1e-12) << i;
  }
}

TEST_F(HigherAutograd, ThirdDerivative) {
  Tensor x = Tensor::from<double>({2.0}, {1}).requires_grad_();
  Tensor y = ops::sum(x * x * x * x);
  for (int i = 0; i < 3; ++i) {
    const Tensor roots[] = {y}, inputs[] = {x};
    y = ops::sum(autograd::grad(roots, inputs, {}, false, true)[0]);
  }
  EXPECT_NEAR(y.item(), 48, 1e-12);
}

TEST_F(HigherAutograd, AGradientPenaltyTrains) {
  Tensor w = Tensor::randn({4, 3}, {kF64}).requires_grad_(), x = Tensor::randn({2, 4}, {kF64}).requires_grad_();
  const Tensor loss = ops::sum(ops::gelu(ops::matmul(x, w)));
  const Tensor inputs[] = {x};
  const Tensor grad = autograd::grad({&loss, 1}, inputs, {}, false, true)[0];
  (loss + ops::sum(grad * grad)).backward();
  EXPECT_TRUE(w.grad().defined());
}

// What cannot be differentiated twice says so; a missing term would be a wrong number.
TEST_F(HigherAutograd, AMissingSecondDerivativeIsAnError) {
  auto second = [](const Fn& fn, const Tensor& at) -> std::string {
    Tensor x = at.clone().requires_grad_();
    try {
      const Tensor inputs[] = {x};
      const Tensor loss = fn(inputs);
      const Tensor grad = autograd::grad({&loss, 1}, inputs, {}, false, true)[0];
      ops::sum(grad * grad).backward();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::string overwrite = second(
      [](auto in) {
        Tensor base = in[0] * in[0];
        base[0].mul_(in[0][1]);
        return ops::sum(base * base);
      },
      random({2, 4}));
  EXPECT_NE(overwrite, "") << "a second derivative through a write to a view";
}

// ---- Checkpointing

using Tensors = std::vector<Tensor>;

TEST_F(HigherAutograd, CheckpointGivesTheSameBits) {
  Tensor w1 = Tensor::randn({6, 8}).requires_grad_(), w2 = Tensor::randn({8, 6}).requires_grad_();
  Tensor x = Tensor::randn({4, 6}).requires_grad_();
  const auto block = [&](std::span<const Tensor> in) {
    return Tensors{ops::dropout(ops::matmul(ops::gelu(ops::matmul(in[0], w1)), w2), 0.3)};
  };
  auto run = [&](bool checkpointed) {
    manual_seed(5);
    for (Tensor* t : {&w1, &w2, &x}) t->zero_grad();
    const Tensor in[] = {x};
    const Tensor y = checkpointed ? autograd::checkpoint(block, in)[0] : block(in)[0];
    const Tensor noise = Tensor::rand({4, 6});  // the stream goes on from where the block left it
    ops::sum(y * noise).backward();
    return Tensors{y.detach(), w1.grad(), w2.grad(), x.grad(), Tensor::rand({3})};
  };
  const Tensors plain = run(false), recomputed = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same_bits(plain[i], recomputed[i])) << i;
}

TEST_F(HigherAutograd, NestedCheckpointsAndSeveralOutputs) {
  Tensor w = Tensor::randn({5}).requires_grad_(), x = Tensor::randn({5}).requires_grad_();
  const auto inner = [&](std::span<const Tensor> in) { return Tensors{ops::tanh(in[0] * w), in[0] + 1.0}; };
  const auto outer = [&](std::span<const Tensor> in) {
    const auto a = autograd::checkpoint(inner, in);
    return autograd::checkpoint(inner, std::vector<Tensor>{a[0] * a[1]});
  };
  auto run = [&](bool checkpointed) {
    w.zero_grad();
    x.zero_grad();
    const Tensor in[] = {x};
    Tensors y;
    if (checkpointed) {
      y = autograd::checkpoint(outer, in);
    } else {
      const auto a = inner(in);
      const Tensor product[] = {a[0] * a[1]};
      y = inner(product);
    }
    ops::sum(y[0]).backward();  // the second output is not used
    return Tensors{w.grad(), x.grad()};
  };
  const Tensors plain = run(false), recomputed = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same_bits(plain[i], recomputed[i])) << i;
}

TEST_F(HigherAutograd, CheckpointMayReturnItsInput) {
  Tensor x = Tensor::from<float>({1, 2}, {2}).requires_grad_();
  const Tensor in[] = {x};
  const auto y = autograd::checkpoint([](std::span<const Tensor> t) { return Tensors{t[0], t[0] * 2.0}; }, in);
  EXPECT_TRUE(x.is_leaf()) << "checkpoint changed the input's history";
  ops::sum(y[0] * 3.0 + y[1]).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{5, 5}));
}

TEST_F(HigherAutograd, AThrowWhileRecomputingLeavesTheRandomStreamAlone) {
  Tensor x = Tensor::randn({3}).requires_grad_();
  int calls = 0;
  const Tensor in[] = {x};
  const Tensor y = autograd::checkpoint(
      [&](std::span<const Tensor> t) {
        if (++calls == 2) throw Error("recomputing");
        return Tensors{ops::dropout(t[0], 0.5)};
      },
      in)[0];
  const uint64_t offset = default_generator().offset();
  EXPECT_THROW(ops::sum(y).backward(), Error);
  EXPECT_EQ(default_generator().offset(), offset);
  EXPECT_TRUE(grad_enabled());
}

TEST_F(HigherAutograd, CheckpointKnowsStaleInputs) {
  Tensor w = Tensor::randn({3}).requires_grad_(), h = w * 2.0;
  const Tensor in[] = {h};
  const Tensor y = autograd::checkpoint([](std::span<const Tensor> t) { return Tensors{t[0] * t[0]}; }, in)[0];
  h.add_(1.0);
  EXPECT_THROW(ops::sum(y).backward(), StaleTensorError);
}

TEST_F(HigherAutograd, ASecondDerivativeThroughACheckpointIsRightOrAnError) {
  Tensor x = Tensor::from<double>({2.0}, {1}).requires_grad_();
  const Tensor in[] = {x};
  const auto cube = [](std::span<const Tensor> t) { return Tensors{t[0] * t[0] * t[0]}; };
  const Tensor loss = ops::sum(autograd::checkpoint(cube, in)[0]);
  double second = 12;
  try {
    const Tensor grad = ops::sum(autograd::grad({&loss, 1}, in, {}, false, true)[0]);
    second = autograd::grad({&grad, 1}, in)[0].item();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("checkpoint"), std::string::npos) << e.what();
  }
  EXPECT_NEAR(second, 12, 1e-12);
}

}  // namespace
}  // namespace rondo
