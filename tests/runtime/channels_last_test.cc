// Images that are channels last stay so, and nothing but the layout differs: every result has the values that it has in
// the usual layout.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <utility>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::same_bits;
using test::uniform;

Tensor last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }
bool is_last(const Tensor& t) { return t.strides() == channels_last_strides(t.sizes()); }

struct Case {
  const char* name;
  std::function<Tensor(const Tensor&)> run;
  bool sums = false;  // in an order of its own in each layout
};
const Case kCases[] = {
    {"relu", [](const Tensor& x) { return ops::relu(x); }},
    {"with itself", [](const Tensor& x) { return ops::maximum(x * x, x + 0.5); }},
    {"a scalar", [](const Tensor& x) { return x * Tensor::full({}, 3.0, {kF64}); }},
    {"a number of each channel",
     [](const Tensor& x) {
       return x * uniform({6, 1, 1}, -1, 1, 5);
     }},
    {"a row of pixels", [](const Tensor& x) { return uniform({5}, -1, 1, 5) - x; }},
    {"an image of the usual layout behind it",
     [](const Tensor& x) {
       return x + uniform({2, 6, 4, 5}, -1, 1, 6);
     }},
    {"where", [](const Tensor& x) { return ops::where(ops::greater(x, 0.25), x, 0.0); }},
    {"to f32", [](const Tensor& x) { return x.to(kF32).to(kF64); }},
    {"batch_norm", [](const Tensor& x) { return ops::batch_norm(x, uniform({6}, 1, 2, 7), uniform({6}, 1, 2, 8)).y; },
     true},
    {"batch_norm_with",
     [](const Tensor& x) {
       return ops::batch_norm_with({uniform({6}, -1, 1, 7), uniform({6}, 1, 2, 8)}, x, uniform({6}, 1, 2, 9), {});
     }},
    {"group_norm", [](const Tensor& x) { return ops::group_norm(x, 3, uniform({6}, 1, 2, 7), {}); }, true},
    {"max_pool2d", [](const Tensor& x) { return ops::max_pool2d(x, 2); }},
    {"avg_pool2d", [](const Tensor& x) { return ops::avg_pool2d(x, 2, {.padding = 1, .count_include_pad = false}); },
     true},
    {"adaptive_avg_pool2d",
     [](const Tensor& x) {
       return ops::adaptive_avg_pool2d(x, {3, 2});
     },
     true},
    {"nearest",
     [](const Tensor& x) {
       return ops::interpolate(x, {7, 3});
     }},
    {"bilinear",
     [](const Tensor& x) {
       return ops::interpolate(x, {7, 3}, {.mode = ops::InterpolateMode::kBilinear});
     }},
    {"pad",
     [](const Tensor& x) {
       return ops::pad(x, {1, 2, -1, 1, 0, 2}, ops::PadMode::kConstant, 0.5);
     }},
    {"pad, reflect",
     [](const Tensor& x) {
       return ops::pad(x, {1, 2, 3, 0}, ops::PadMode::kReflect);
     }},
    {"pixel_shuffle",
     [](const Tensor& x) {
       return ops::pixel_shuffle(ops::cat({x, x * 2.0}, 1), 2);
     }},
    {"cat of channels",
     [](const Tensor& x) {
       return ops::cat({x, x * 2.0, x}, 1);
     }},
    {"cat of rows",
     [](const Tensor& x) {
       return ops::cat({x, -x}, 2);
     }},
};

TEST(ChannelsLast, ResultsKeepTheLayoutAndTheValues) {
  const Tensor x = uniform({2, 6, 4, 5}, -1, 1, 1);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Tensor want = c.run(x), got = c.run(last(x));
    EXPECT_TRUE(is_last(got)) << to_string(got.strides());
    if (c.sums) EXPECT_TRUE(test::is_close(got, want, test::of_largest_above_1(1e-13)));
    else EXPECT_TRUE(same_bits(got, want));
  }
}

TEST(ChannelsLast, Gradients) {
  const Tensor x = uniform({2, 6, 4, 5}, -1, 1, 1);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto gradient = [&](const Tensor& from, bool of_last) {
      Tensor leaf = (of_last ? last(from) : from).detach();
      leaf.requires_grad_();
      const Tensor y = c.run(leaf), grad = uniform(y.sizes(), -1, 1, 2);
      y.backward(of_last ? last(grad) : grad);
      return leaf.grad();
    };
    EXPECT_TRUE(test::is_close(gradient(x, true), gradient(x, false), test::of_largest_above_1(1e-12)));
  }
}

// The first operand of the result's size decides, as in PyTorch.
TEST(ChannelsLast, TheFirstOperandDecides) {
  const Tensor usual = uniform({2, 6, 4, 5}, -1, 1, 1), image = last(usual);
  EXPECT_TRUE(is_last(image + usual));
  EXPECT_TRUE((usual + image).is_contiguous());
  EXPECT_TRUE(is_last(uniform({1, 6, 1, 1}, 0, 1, 2) * image));
  EXPECT_TRUE((image.slice(1, {0, 3}) + 1.0).permute({0, 2, 3, 1}).is_contiguous());  // dense again
  EXPECT_TRUE(ops::cat({image, usual}, 1).is_contiguous());
  EXPECT_TRUE(image.clone().is_contiguous());
  EXPECT_TRUE(image.contiguous().is_contiguous());
  // An image of one channel or of one pixel is of both layouts.
  EXPECT_TRUE((last(uniform({2, 1, 4, 5}, 0, 1, 3)) + 1.0).is_contiguous());
  EXPECT_TRUE((uniform({2, 6, 1, 1}, 0, 1, 3) + 1.0).is_contiguous());
}

// In place, the target keeps its layout; and what no_grad() computes is no view that a write would be refused to.
TEST(ChannelsLast, Writes) {
  const Tensor x = last(uniform({2, 6, 4, 5}, -1, 1, 1)), w = uniform({6, 1, 1}, -1, 1, 2).requires_grad_();
  Tensor y = no_grad([&] { return ops::relu(x); });
  EXPECT_TRUE(is_last(y));
  y.mul_(w);
  EXPECT_TRUE(is_last(y));
  ops::sum(y).backward();
  EXPECT_TRUE(test::is_close(w.grad(), ops::sum(ops::relu(x), {0, 2, 3}).reshape({6, 1, 1}), {.absolute = 1e-13}));
  Tensor leaf = no_grad([&] { return x * 2.0; });
  EXPECT_TRUE(leaf.is_leaf());
  leaf.requires_grad_();
  ops::sum(leaf * leaf).backward();
  EXPECT_TRUE(same_bits(leaf.grad(), no_grad([&] { return leaf * 2.0; })));
}

// A write to a part of a result has the same gradients in both layouts.
TEST(ChannelsLast, WritesToParts) {
  const Tensor usual = uniform({2, 6, 4, 5}, -1, 1, 1), scale = uniform({4, 5}, -1, 1, 2);
  const auto gradients = [&](const Tensor& image) {
    Tensor x = image.detach().requires_grad_(), w = scale.detach().requires_grad_();
    const Tensor y = x * 3.0;
    EXPECT_EQ(is_last(y), is_last(image));
    y.select(1, 2).mul_(w);
    const Tensor whole = y.permute({3, 2, 1, 0});
    y.slice(2, {1, 3}).add_(w.slice(0, {0, 2}));
    ops::sum(whole * whole).backward();
    return std::pair(x.grad(), w.grad());
  };
  const auto want = gradients(usual), got = gradients(last(usual));
  EXPECT_TRUE(test::is_close(got.first, want.first, {.absolute = 1e-13}));
  EXPECT_TRUE(test::is_close(got.second, want.second, {.absolute = 1e-13}));
  // The base is no elementwise op's result.
  const Tensor kernel = uniform({6, 6, 1, 1}, -1, 1, 3).requires_grad_();
  const auto of_convolution = [&](const Tensor& image) {
    const Tensor y = ops::conv2d(image, kernel, {});
    y.select(0, 1).mul_(2.0);
    return autograd::grad(std::array{ops::sum(y * y)}, std::array{kernel})[0];
  };
  EXPECT_TRUE(test::is_close(of_convolution(last(usual)), of_convolution(usual), {.absolute = 1e-12}));
}

TEST(ChannelsLast, AConvolutionsWeightHasItsGradientInItsLayout) {
  const Tensor x = last(uniform({2, 6, 4, 5}, -1, 1, 1)).requires_grad_();
  for (const bool weight_last : {false, true}) {
    Tensor w = uniform({3, 6, 3, 3}, -1, 1, 2);
    w = (weight_last ? last(w) : w).detach().requires_grad_();
    const Tensor y = ops::conv2d(x, w, uniform({3}, 0, 1, 3), {.padding = 1}),
                 one = last(Tensor::ones(y.sizes(), {kF64}));
    EXPECT_TRUE(is_last(y));
    const Tensor leaves[] = {x, w};
    const std::vector<Tensor> grads = autograd::grad({&y, 1}, leaves, {&one, 1});
    EXPECT_EQ(to_string(grads[1].strides()), to_string(w.strides()));
    EXPECT_TRUE(is_last(grads[0]));
  }
}

TEST(ChannelsLast, ErrorsShowTheShapesOfTheCaller) {
  const Tensor x = last(uniform({2, 6, 4, 5}, -1, 1, 1));
  const std::string message = test::error_of([&] { ops::add(x, uniform({3, 1, 1}, 0, 1, 2)); });
  EXPECT_NE(message.find("[2, 6, 4, 5]"), std::string::npos) << message;
}

}  // namespace
}  // namespace rondo
