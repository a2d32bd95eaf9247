// The gradient of an additive attention mask (relative positions): that of plain_attention, where every score is
// stored.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using Tensors = std::vector<Tensor>;

struct Case {
  DType dtype = kF64;
  Dims mask;
  bool causal = false;
  double dropout = 0;
  int64_t queries = 7, keys = 13, heads_of_keys = 4;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.dtype) << to_string(c.mask) << (c.causal ? " causal" : "") << " dropout " << c.dropout << " "
             << c.queries << " x " << c.keys << ", " << c.heads_of_keys << " heads";
}

// The output, and the gradients of q, k, v and mask; computed in the dtype, returned in f64.
template <class Attention> Tensors run(const Case& c, DType dtype, Attention attention, bool second = false) {
  manual_seed(5);
  const auto leaf = [&](const Dims& sizes) {
    return Tensor::randn(sizes, {kF64}).to(c.dtype).to(dtype).detach().requires_grad_();
  };
  const int64_t D = 6;
  const Tensor q = leaf({2, 4, c.queries, D}), k = leaf({2, c.heads_of_keys, c.keys, D}),
               v = leaf({2, c.heads_of_keys, c.keys, D});
  Tensor mask = Tensor::randn(c.mask, {kF64}).to(c.dtype).to(dtype).detach();
  if (mask.numel() > 3) no_grad([&] { mask.flatten()[3].fill_(-std::numeric_limits<double>::infinity()); });
  mask.requires_grad_();
  Generator generator(9);
  const Tensor y = attention(q, k, v, mask, {.causal = c.causal, .dropout = c.dropout, .generator = &generator});
  const Tensor weight = Tensor::randn(y.sizes(), {kF64}).to(c.dtype).to(dtype);
  const Tensor roots[] = {ops::sum(y * weight)}, inputs[] = {q, k, v, mask};
  Tensors results = autograd::grad(roots, inputs, {}, second, second);
  if (second) {
    const Tensor next[] = {ops::sum(results[3] * results[3]) + ops::sum(results[0] * results[1].sum() * 0.1)};
    results = autograd::grad(next, inputs);
  }
  results.push_back(y);
  for (Tensor& t : results) t = t.detach().to(kF64);
  return results;
}

void expect_plain_gradients(const Case& c, double tolerance, bool second = false) {
  SCOPED_TRACE(testing::Message() << c);
  const Tensors fused = run(c, c.dtype, &ops::scaled_dot_product_attention, second);
  const Tensors plain = run(c, kF64, &ops::plain_attention, second);
  ASSERT_EQ(fused.size(), plain.size());
  for (size_t i = 0; i < fused.size(); ++i) {
    ASSERT_EQ(fused[i].sizes(), plain[i].sizes()) << i;
    const double scale = ops::max(ops::abs(plain[i])).item();
    EXPECT_LE(ops::max(ops::abs(fused[i] - plain[i])).item(), tolerance * scale) << "result " << i;
  }
  EXPECT_GT(ops::max(ops::abs(plain[3])).item(), 0) << "the mask has no gradient to compare";
}

const Dims kMasks[] = {{2, 4, 7, 13}, {1, 4, 7, 13}, {2, 1, 7, 13}, {1, 1, 7, 13}, {2, 4, 1, 13},
                       {2, 4, 7, 1},  {1, 4, 1, 13}, {2, 1, 1, 13}, {1, 1, 1, 13}, {2, 1, 7, 1},
                       {4, 7, 13},    {7, 13},       {13},          {1, 1}};

// A mask that is one number for all keys of a query moves no weight: its gradient is 0 but for rounding.
bool moves_weights(const Dims& mask) { return mask.back() != 1; }

TEST(AttentionMask, EveryBroadcast) {
  for (const Dims& mask : kMasks)
    for (const bool causal : {false, true})
      for (const double dropout : {0.0, 0.4})
        if (moves_weights(mask)) expect_plain_gradients({.mask = mask, .causal = causal, .dropout = dropout}, 1e-12);
}

// Models mask by the lowest number of the dtype. A row that is masked whole has equal weights then, as in
// plain_attention: in the kernels, and in the ops that second derivatives are made of.
TEST(AttentionMask, TheLowestFiniteNumberIsNoInfinity) {
  for (const DType dtype : {kF32, kF64, kBF16}) {
    const double largest = dtype == kF64   ? std::numeric_limits<double>::max()
                           : dtype == kF32 ? static_cast<double>(std::numeric_limits<float>::max())
                                           : 3.3895313892515355e38;
    for (const int64_t queries : {1, 7})
      for (const bool learnt : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << queries << " queries, mask learnt: " << learnt);
        manual_seed(3);
        const auto leaf = [&](int64_t rows) { return Tensor::randn({2, 2, rows, 6}, {dtype}).requires_grad_(); };
        const Tensor q = leaf(queries), k = leaf(70), v = leaf(70);
        Tensor mask = Tensor::full({queries, 70}, -largest, {dtype});
        if (queries > 1) no_grad([&] { mask.slice(0, {3, 5}).slice(1, {10, 40}).fill_(0.0); });
        if (learnt) mask.requires_grad_();
        const auto run = [&](auto attention) -> Tensors {
          const Tensor y = attention(q, k, v, mask, ops::AttentionOptions{});
          const Tensor roots[] = {ops::sum(y * 0.5)};
          Tensors inputs = {q, k, v};
          if (learnt) inputs.push_back(mask);
          Tensors results = autograd::grad(roots, inputs, {}, true, true);
          const Tensor next[] = {ops::sum(results[2] * results[2]) + ops::sum(results[0])};
          for (const Tensor& second : autograd::grad(next, inputs)) results.push_back(second);
          results.push_back(y);
          for (Tensor& t : results) t = t.detach().to(kF64);
          return results;
        };
        const Tensors got = run([](auto&&... a) { return ops::scaled_dot_product_attention(a...); }),
                      want = run([](auto&&... a) { return ops::plain_attention(a...); });
        ASSERT_EQ(got.size(), want.size());
        const double bound = dtype == kF64 ? 1e-12 : dtype == kF32 ? 1e-5 : 3e-2;
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(test::is_close(got[i], want[i], test::of_largest_above_1(bound))) << i;
      }
  }
}

TEST(AttentionMask, PlainAttentionTakesNoIntegersForNumbers) {
  const Tensor q = Tensor::randn({1, 1, 3, 2});
  EXPECT_NE(test::error_of([&] {
              ops::plain_attention(q, q, q, Tensor::full({3, 3}, 1, {kU8}));
            }).find("mask must be bool"),
            std::string::npos);
}

TEST(AttentionMask, OfOneColumnIsZeroButForRounding) {
  for (const Dims& mask : kMasks) {
    if (moves_weights(mask)) continue;
    const Tensors fused = run({.mask = mask}, kF64, &ops::scaled_dot_product_attention);
    EXPECT_EQ(fused[3].sizes(), mask);
    if (mask.numel() <= 3) {  // without -inf
      EXPECT_LT(ops::max(ops::abs(fused[3])).item(), 1e-12);
    }
  }
}

TEST(AttentionMask, EveryDType) {
  for (const auto& [dtype, tolerance] : {std::pair{kF32, 1e-5}, std::pair{kF16, 4e-3}, std::pair{kBF16, 3e-2}})
    for (const Dims& mask : {Dims{1, 4, 7, 13}, Dims{2, 1, 1, 13}})
      for (const double dropout : {0.0, 0.4})
        expect_plain_gradients({.dtype = dtype, .mask = mask, .causal = true, .dropout = dropout}, tolerance);
}

// Several tiles of queries and keys, heads in groups, and a decoder's one query.
TEST(AttentionMask, SeveralTiles) {
  for (const bool causal : {false, true}) {
    expect_plain_gradients(
        {.dtype = kF32, .mask = {1, 4, 150, 150}, .causal = causal, .queries = 150, .keys = 150, .heads_of_keys = 2},
        1e-5);
    expect_plain_gradients({.mask = {4, 70, 200}, .causal = causal, .dropout = 0.1, .queries = 70, .keys = 200}, 1e-12);
  }
  expect_plain_gradients({.mask = {1, 4, 1, 130}, .queries = 1, .keys = 130, .heads_of_keys = 1}, 1e-12);
}

TEST(AttentionMask, SecondDerivatives) {
  for (const Dims& mask : {Dims{1, 4, 7, 13}, Dims{2, 1, 1, 13}})
    for (const double dropout : {0.0, 0.4})
      expect_plain_gradients({.mask = mask, .causal = true, .dropout = dropout}, 1e-11, /*second=*/true);
}

// A mask's gradient changes no bit of the others.
TEST(AttentionMask, OtherGradientsAreTheSame) {
  const auto run = [](bool of_mask) {
    manual_seed(4);
    Tensor q = Tensor::randn({2, 4, 70, 6}).requires_grad_(), mask = Tensor::randn({4, 70, 70}).requires_grad_(of_mask);
    ops::sum(ops::square(ops::scaled_dot_product_attention(q, q * 0.5, q * 2.0, mask, {.causal = true}))).backward();
    return q.grad();
  };
  EXPECT_TRUE(test::same_bits(run(true), run(false)));
}

TEST(AttentionMask, AKeyThatNothingReadsGetsZero) {
  Tensor mask = Tensor::zeros({5, 5}).requires_grad_();
  const Tensor q = Tensor::randn({1, 2, 5, 4});
  ops::sum(ops::square(ops::scaled_dot_product_attention(q, q, q, mask, {.causal = true}))).backward();
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = i + 1; j < 5; ++j) EXPECT_EQ(mask.grad()[i][j].item(), 0);
}

}  // namespace
}  // namespace rondo
