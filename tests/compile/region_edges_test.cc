// Programs on which the fuzzer (tests/fuzz/) once saw compiled and eager execution differ.
#include <gtest/gtest.h>

#include "rondo/tests/compile/block_fixture.h"

namespace rondo {
namespace {

using namespace test;

class RegionEdges : public BlockTest {};

// A norm over a dimension of size 1 fits into the rows of a wider kernel, but its sums do not.
TEST_F(RegionEdges, ReductionsOverOneColumnBesideWiderOnes) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor column = x.slice(1, {0, 1}), one = b.bias.slice(0, {0, 1});
    const Tensor top = ops::max(x, {-1}, true);
    return Tensors{x * ops::rms_norm(column, one, 0.1), x + ops::log_softmax(column),
                   x * ops::layer_norm(top, one, one) + ops::softmax(top)};
  };
  expect_as_eager(body, one_step);
}

TEST_F(RegionEdges, SoftmaxOfNoElements) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::softmax(x, 0) * b.bias, ops::log_softmax(x), b.norm(x)};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int64_t rows : {0, 3, 0})
      for (Tensor& t : train_step(b, input({rows, 6}))) all.push_back(t);
    return all;
  });
}

// Such a view does not pass a write on to its base's history, even where the write is differentiable.
TEST_F(RegionEdges, AViewMadeUnderNoGradKnowsNoBase) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = b.state.kept[0] * 2.0;
    Tensor view = no_grad([&] { return h[1]; });
    view.copy_(b.bias);
    Tensor outside = no_grad([&] { return b.state.kept[0].expand({2, 4, 6})[1]; });
    outside.mul_(2.0);
    EXPECT_FALSE(h.requires_grad());
    return Tensors{h + x, view, outside};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({4, 6})};
    Tensors all = one_step(b);
    all.push_back(b.state.kept[0]);
    return all;
  });
}

// Whoever watches a gradient sees all of it, also the part of what has read the tensor before.
TEST_F(RegionEdges, HooksOnWhatHasBeenReadAlready) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * b.bias, view = h.t(), k = ops::tanh(view), top = ops::sum(h * k.t());
    h.register_hook([&b](const Tensor& g) {
      ++b.state.hook_calls;
      return g * 0.5;
    });
    view.retain_grad();
    b.state.kept = {view};
    return Tensors{k.slice(0, {1, 3}), top, h + top};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 2; ++i) {
      for (Tensor& t : one_step(b)) all.push_back(t);
      all.push_back(b.state.kept[0].grad());
    }
    EXPECT_EQ(b.state.hook_calls, 2);
    return all;
  });
}

TEST_F(RegionEdges, DetachIsNoBreak) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias;
    EXPECT_FALSE(h.is_leaf());
    Tensor fixed = h.detach();
    EXPECT_TRUE(fixed.is_leaf());
    return Tensors{h * fixed, fixed, h};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors y = one_step(b);
    EXPECT_TRUE(y[1].storage() == y[2].storage());
    EXPECT_FALSE(y[1].requires_grad());
    return y;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

}  // namespace
}  // namespace rondo
