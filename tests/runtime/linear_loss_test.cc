// linear_cross_entropy against cross_entropy(linear(...)): the same numbers, in less memory.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::same_bits;

struct Results {
  Tensor loss, dx, dweight, dbias;
};

struct Head {
  int64_t N = 37, C = 24, V = 101;
  DType dtype = kF32;
  std::optional<DType> autocast = std::nullopt;
  bool with_bias = true;
  ops::LinearCrossEntropyOptions options = {};
  Tensor target = {};
  double upstream = 1;

  Tensor targets() const {
    if (target.defined()) return target;
    std::vector<int64_t> values;
    for (int64_t i = 0; i < N; ++i) values.push_back(i % 5 == 3 ? -100 : (i * 17) % V);
    return Tensor::from(values, {N});
  }
  Results run(bool chunked) const {
    Tensor x = test::uniform({N, C}, -1, 1, 1).to(dtype), weight = test::uniform({V, C}, -1, 1, 2).to(dtype), bias;
    x.requires_grad_();
    weight.requires_grad_();
    if (with_bias) bias = test::uniform({V}, -1, 1, 3).to(dtype).requires_grad_();
    Tensor loss;
    {
      const amp::Autocast scope(autocast);
      loss = chunked ? ops::linear_cross_entropy(x, weight, bias, targets(), options)
                     : ops::cross_entropy(ops::linear(x, weight, bias), targets(),
                                          {.ignore_index = options.ignore_index,
                                           .label_smoothing = options.label_smoothing,
                                           .reduction = options.reduction});
    }
    const Tensor seed = loss.rank() == 0 ? Tensor::full({}, upstream, {loss.dtype()})
                                         : test::uniform(loss.sizes(), -1, 1, 4).to(loss.dtype());
    loss.backward(seed);
    return {loss.detach(), x.grad(), weight.grad(), with_bias ? bias.grad() : Tensor()};
  }
};

// Relative to the largest element.
void expect_close(const Tensor& a, const Tensor& b, double tolerance, const char* what) {
  EXPECT_TRUE(test::is_close(a, b, {.of_largest = tolerance})) << what;
}

void expect_same(const Head& head, double tolerance) {
  const Results whole = head.run(false), chunked = head.run(true);
  expect_close(chunked.loss, whole.loss, tolerance, "loss");
  expect_close(chunked.dx, whole.dx, tolerance, "dx");
  expect_close(chunked.dweight, whole.dweight, tolerance, "dweight");
  expect_close(chunked.dbias, whole.dbias, tolerance, "dbias");
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case kF64: return 1e-14;
    case kF32: return 4e-6;
    case kBF16: return 0x1p-7;  // two roundings
    default: return 0x1p-9;
  }
}

TEST(LinearCrossEntropy, EqualsTheTwoOpsForEveryChunkDtypeAndReduction) {
  for (DType dtype : {kF64, kF32, kBF16, kF16})
    for (int64_t chunk : {0, 1, 5, 16, 36, 37, 100})
      for (auto reduction : {ops::Reduction::kMean, ops::Reduction::kSum, ops::Reduction::kNone})
        for (double smoothing : {0.0, 0.1}) {
          SCOPED_TRACE(std::string(name_of(dtype)) + ", chunk " + std::to_string(chunk) + ", reduction " +
                       std::to_string(static_cast<int>(reduction)));
          expect_same({.dtype = dtype,
                       .with_bias = chunk != 5,
                       .options = {.label_smoothing = smoothing, .reduction = reduction, .chunk_rows = chunk}},
                      tolerance_of(dtype));
        }
}

TEST(LinearCrossEntropy, AutocastLowersTheProductsOnly) {
  for (DType lower : {kBF16, kF16})
    for (int64_t chunk : {0, 7}) {
      SCOPED_TRACE(std::string(name_of(lower)) + ", chunk " + std::to_string(chunk));
      const Head head{.autocast = lower, .options = {.chunk_rows = chunk}};
      const Results whole = head.run(false), chunked = head.run(true);
      // The same logits, and from there on f32.
      EXPECT_EQ(chunked.loss.dtype(), kF32);
      EXPECT_NEAR(chunked.loss.item(), whole.loss.item(), 1e-6 * whole.loss.item());
      expect_same(head, lower == kBF16 ? 0x1p-8 : 0x1p-10);
    }
  // f64 is never lowered.
  expect_same({.dtype = kF64, .autocast = kBF16, .options = {.chunk_rows = 7}}, 1e-14);
}

// A loss scale reaches f16 gradients before they are rounded: 1 / N alone would make zeros of them.
TEST(LinearCrossEntropy, LossScalesSaveF16) {
  const Head head{.autocast = kF16, .with_bias = false, .options = {.chunk_rows = 7}, .upstream = 65536};
  expect_same(head, 0x1p-9);
}

TEST(LinearCrossEntropy, IgnoredTargets) {
  for (int64_t chunk : {0, 4}) {
    const Tensor none = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6}, {6}), all = Tensor::full({6}, -100, {kI64});
    expect_same({.N = 6, .options = {.chunk_rows = chunk}, .target = none}, 4e-6);
    // Some ignored chunk as a whole.
    expect_same({.N = 6,
                 .options = {.ignore_index = 9, .chunk_rows = 2},
                 .target = Tensor::from<int64_t>({1, 2, 9, 9, 3, 9}, {6})},
                4e-6);
    const Head head{.N = 6, .options = {.chunk_rows = chunk}, .target = all};
    const Results whole = head.run(false), chunked = head.run(true);
    EXPECT_TRUE(std::isnan(whole.loss.item()) && std::isnan(chunked.loss.item()));
    for (const Tensor* grad : {&chunked.dx, &chunked.dweight, &chunked.dbias})
      for (double v : grad->to_vector<double>()) EXPECT_EQ(v, 0);
    EXPECT_EQ((Head{.N = 6, .options = {.reduction = ops::Reduction::kSum}, .target = all}.run(true).loss.item()), 0);
  }
}

TEST(LinearCrossEntropy, WhatArrivesScalesTheGradients) {
  expect_same({.options = {.chunk_rows = 10}, .upstream = -0.37}, 4e-6);
  // Twice, and added to: the saved gradients are not the user's.
  Tensor x = test::uniform({5, 4}, -1, 1, 1).to(kF32), weight = test::uniform({7, 4}, -1, 1, 2).to(kF32);
  x.requires_grad_();
  weight.requires_grad_();
  const Tensor loss = ops::linear_cross_entropy(x, weight, Tensor(), Tensor::from<int64_t>({1, 2, 3, 4, 5}, {5}));
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = weight.grad().clone();
  weight.set_grad(Tensor());
  loss.backward(Tensor::full({}, 3.0), /*retain_graph=*/true);
  weight.grad().detach().mul_(2.0);
  loss.backward(Tensor::full({}, 3.0));
  expect_close(weight.grad(), once * 9.0, 1e-6, "dweight");
}

TEST(LinearCrossEntropy, OnlyWhatIsWanted) {
  const Tensor x = test::uniform({5, 4}, -1, 1, 1).to(kF32), target = Tensor::from<int64_t>({1, 2, 3, 4, 5}, {5});
  Tensor weight = test::uniform({7, 4}, -1, 1, 2).to(kF32);
  weight.requires_grad_();
  EXPECT_FALSE(no_grad([&] { return ops::linear_cross_entropy(x, weight, Tensor(), target); }).requires_grad());
  ops::linear_cross_entropy(x, weight, Tensor(), target).backward();
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_FALSE(x.requires_grad());
}

TEST(LinearCrossEntropy, EqualBitsForAnyThreads) {
  const int before = num_threads();
  for (std::optional<DType> lower : {std::optional<DType>(), std::optional(kBF16)}) {
    const Head head{.N = 300, .C = 65, .V = 1203, .autocast = lower, .options = {.chunk_rows = 77}};
    set_num_threads(1);
    const Results one = head.run(true);
    set_num_threads(2);
    const Results two = head.run(true);
    EXPECT_TRUE(same_bits(one.loss, two.loss));
    EXPECT_TRUE(same_bits(one.dx, two.dx));
    EXPECT_TRUE(same_bits(one.dweight, two.dweight));
    EXPECT_TRUE(same_bits(one.dbias, two.dbias));
  }
  set_num_threads(before);
}

// The point of it: logits are 20 MB here, a chunk 2.
TEST(LinearCrossEntropy, MemoryIsThatOfAChunk) {
  const auto growth = [](bool chunked, int64_t chunk) {
    Tensor x = Tensor::zeros({256, 8}), weight = Tensor::zeros({20000, 8});
    x.requires_grad_();
    weight.requires_grad_();
    const Tensor target = Tensor::zeros({256}, {kI64});
    const int64_t before = allocator::stats().bytes_in_use;
    allocator::reset_peak();
    (chunked ? ops::linear_cross_entropy(x, weight, Tensor(), target, {.chunk_rows = chunk})
             : ops::cross_entropy(ops::linear(x, weight, Tensor()), target))
        .backward();
    return allocator::stats().peak_bytes - before;
  };
  constexpr int64_t kLogits = 256 * 20000 * 4;
  EXPECT_GT(growth(false, 0), 2 * kLogits);
  EXPECT_LT(growth(true, 26), kLogits / 10 + 2'000'000);
}

}  // namespace
}  // namespace rondo
