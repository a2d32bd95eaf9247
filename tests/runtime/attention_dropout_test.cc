// Dropout inside scaled_dot_product_attention. The kernel of the CPU with dropout: attention_test.cc; CUDA's:
// tests/cuda/attention_test.cc.
#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::same_bits;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Operands {
  Tensor q, k, v, grad;
  Operands(int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t head_dim, DType dtype = kF64) {
    Generator generator(3);
    const auto random = [&](int64_t h, int64_t t) {
      return Tensor::randn({2, h, t, head_dim}, {kF64}, &generator).to(dtype);
    };
    q = random(heads, queries);
    k = random(kv_heads, keys);
    v = random(kv_heads, keys);
    grad = random(heads, queries);
  }
  // The result and the gradients of q, k and v.
  template <class F> std::vector<Tensor> run(F&& attention) const {
    Tensor leaves[] = {q.detach(), k.detach(), v.detach()};
    for (Tensor& leaf : leaves) leaf.requires_grad_();
    const Tensor out = attention(leaves[0], leaves[1], leaves[2]);
    out.backward(grad);
    return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  }
};
double difference(const Tensor& a, const Tensor& b) { return ops::max(ops::abs(a - b)).item(); }

TEST(AttentionDropout, IsDropoutOfTheWeights) {
  for (const bool causal : {false, true}) {
    const Operands o(2, 2, 9, 12, 6);
    Generator inside(5), outside(5);
    const auto fused = o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::scaled_dot_product_attention(q, k, v, {}, {.causal = causal, .dropout = 0.3, .generator = &inside});
    });
    const auto parts = o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      Tensor scores = ops::matmul(q, k.transpose(-1, -2)) / std::sqrt(6.0);
      if (causal)
        scores = ops::where(ops::less_equal(Tensor::arange(12), Tensor::arange(9).view({9, 1})), scores, -kInf);
      return ops::matmul(ops::dropout(ops::softmax(scores), 0.3, &outside), v);
    });
    for (size_t i = 0; i < 4; ++i) EXPECT_LT(difference(fused[i], parts[i]), 1e-13) << i;
    EXPECT_EQ(inside.offset(), 1u);
  }
}

// The same masks with every score stored, for any number of keys, heads in groups and each kind of mask.
TEST(AttentionDropout, IsThatOfPlainAttention) {
  const Tensor masks[] = {Tensor(), Tensor::randn({2, 1, 7, 13}) > -0.5, Tensor::randn({1, 4, 7, 13}, {kF64}),
                          Tensor::randint(-2, 5, {2, 1, 7, 1})};
  for (const Tensor& mask : masks) {
    const Operands o(4, 2, 7, 13, 5);
    Generator inside(5), outside(5);
    const auto fused = o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::scaled_dot_product_attention(q, k, v, mask, {.dropout = 0.4, .generator = &inside});
    });
    const auto plain = o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::plain_attention(q, k, v, mask, {.dropout = 0.4, .generator = &outside});
    });
    for (size_t i = 0; i < 4; ++i) EXPECT_LT(difference(fused[i], plain[i]), 1e-13) << i;
  }
}

// Equal scores, and values that are the unit matrix: the result is the weights themselves.
TEST(AttentionDropout, KeepsTheStatedShareOfEachHeadAndRow) {
  const int64_t T = 64, heads = 3, queries = 500;
  Generator generator(11);
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor units = ops::where(Tensor::arange(T).view({T, 1}) == Tensor::arange(T), 1.0, 0.0)
                             .to(kF32)
                             .expand({1, heads, T, T})
                             .contiguous();
    const std::vector<float> weights = ops::scaled_dot_product_attention(Tensor::zeros({1, heads, queries, T}),
                                                                         Tensor::zeros({1, heads, T, T}), units, {},
                                                                         {.dropout = p, .generator = &generator})
                                           .contiguous()
                                           .to_vector<float>();
    const auto share_of = [&](int64_t begin, int64_t step, int64_t n) {
      double kept = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float weight = weights[static_cast<size_t>(begin + i * step)];
        if (weight == 0) continue;
        EXPECT_NEAR(weight, 1 / (1 - p) / static_cast<double>(T), 1e-6);
        kept += 1;
      }
      return kept / static_cast<double>(n);
    };
    // Five standard deviations of the binomial distribution.
    const auto within = [&](int64_t n) { return 5 * std::sqrt(p * (1 - p) / static_cast<double>(n)); };
    for (int64_t h = 0; h < heads; ++h)
      EXPECT_NEAR(share_of(h * queries * T, 1, queries * T), 1 - p, within(queries * T)) << "head " << h;
    for (int64_t key = 0; key < T; ++key)
      EXPECT_NEAR(share_of(key, T, heads * queries), 1 - p, within(heads * queries)) << "key " << key;
    for (int64_t row = 1; row < heads * queries; ++row)
      EXPECT_FALSE(
          std::equal(weights.begin() + row * T, weights.begin() + (row + 1) * T, weights.begin() + (row - 1) * T))
          << "row " << row;
  }
}

TEST(AttentionDropout, DrawsNewNumbersEachTimeAndTheSameOnesAgain) {
  const Operands o(2, 1, 33, 33, 8, kF32);
  Generator generator(7);
  const auto run = [&] {
    return o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::scaled_dot_product_attention(q, k, v, {}, {.causal = true, .dropout = 0.2, .generator = &generator});
    });
  };
  const auto first = run(), second = run();
  EXPECT_EQ(generator.offset(), 2u);
  generator.set_state(7, 0);
  const auto again = run();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(same_bits(first[i], second[i])) << i;
    EXPECT_TRUE(same_bits(first[i], again[i])) << i;
  }
}

TEST(AttentionDropout, ProbabilitiesZeroAndOne) {
  const Operands o(2, 2, 21, 22, 8, kF32);
  Generator generator(1);
  const auto run = [&](double p) {
    return o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::scaled_dot_product_attention(q, k, v, {}, {.dropout = p, .generator = &generator});
    });
  };
  const auto none = run(0), plain = o.run([](const Tensor&q, const Tensor&k, const Tensor&v) {
    return ops::scaled_dot_product_attention(q, k, v);
  });
  EXPECT_EQ(generator.offset(), 0u);  // nothing is drawn
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(none[i], plain[i])) << i;
  for (const Tensor& t : run(1))
    for (const float value : t.to_vector<float>()) ASSERT_EQ(value, 0.0f);
  for (const double p : {-0.1, 1.1, kInf, std::nan("")})
    EXPECT_NE(test::error_of([&] { run(p); }).find("attention: p must be in [0, 1]"), std::string::npos) << p;
}

TEST(AttentionDropout, SecondDerivatives) {
  const auto second = [](bool plain) {
    const Operands o(2, 1, 5, 7, 3);
    Tensor leaves[] = {o.q.detach(), o.k.detach(), o.v.detach()};
    for (Tensor& leaf : leaves) leaf.requires_grad_();
    Generator generator(2);
    const ops::AttentionOptions options{.causal = true, .dropout = 0.3, .generator = &generator};
    const Tensor out = plain ? ops::plain_attention(leaves[0], leaves[1], leaves[2], {}, options)
                             : ops::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], {}, options);
    const Tensor loss = ops::sum(out * out * o.grad);
    std::vector<Tensor> grads = autograd::grad({&loss, 1}, leaves, {}, false, true);
    Tensor total = ops::sum(grads[0] * grads[0]);
    for (size_t i = 1; i < 3; ++i) total = total + ops::sum(grads[i] * grads[i]);
    total.backward();
    return std::vector<Tensor>{leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  const auto fused = second(false), plain = second(true);
  for (size_t i = 0; i < 3; ++i) EXPECT_LT(difference(fused[i], plain[i]), 1e-10) << i;
}

TEST(AttentionDropout, ACheckpointDrawsTheSameMask) {
  const Operands o(2, 2, 20, 20, 8, kF32);
  const auto run = [&](bool checkpointed) {
    manual_seed(4);
    return o.run([&](const Tensor& q, const Tensor& k, const Tensor& v) {
      const auto attention = [](std::span<const Tensor> in) {
        return std::vector<Tensor>{
            ops::scaled_dot_product_attention(in[0], in[1], in[2], {}, {.causal = true, .dropout = 0.3})};
      };
      const Tensor in[] = {q, k, v};
      return checkpointed ? autograd::checkpoint(attention, in)[0] : attention(in)[0];
    });
  };
  const auto kept = run(false), computed_again = run(true);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(kept[i], computed_again[i])) << i;
}

TEST(AttentionDropout, AWrongProbabilityDrawsNothing) {
  Generator generator(1);
  const Tensor q = Tensor::randn({1, 2, 4, 8});
  const ops::AttentionOptions wrong{.dropout = 1.5, .generator = &generator};
  EXPECT_THROW(ops::scaled_dot_product_attention(q, q, q, {}, wrong), Error);
  EXPECT_THROW(ops::plain_attention(q, q, q, {}, wrong), Error);
  EXPECT_THROW(ops::dropout(q, 1.5, &generator), Error);
  EXPECT_EQ(generator.offset(), 0u);
}

// Operands that scaled_dot_product_attention() refuses; heads of k that are none once ended the process.
TEST(PlainAttention, RefusesTheSameShapes) {
  const Tensor q = Tensor::randn({1, 2, 4, 8}), k = Tensor::randn({1, 2, 6, 8});
  const auto refused = [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask = {}) {
    EXPECT_THROW(ops::scaled_dot_product_attention(q, k, v, mask), Error);
    EXPECT_THROW(ops::plain_attention(q, k, v, mask), Error);
  };
  refused(q, Tensor::randn({1, 0, 6, 8}), Tensor::randn({1, 0, 6, 8}));
  refused(Tensor::randn({1, 3, 4, 8}), k, k);
  refused(q, k, Tensor::randn({1, 2, 6, 5}));
  refused(q, Tensor::randn({3, 2, 6, 8}), Tensor::randn({3, 2, 6, 8}));
  refused(q, k, k, Tensor::full({3, 1, 1, 6}, true, {kBool}));
  refused(q, k, k, Tensor::full({1, 1, 1, 1, 6}, true, {kBool}));
  refused(q, k, k, Tensor::zeros({1, 1, 1, 6}, {kI64}));
  refused(q, k, k, Tensor::zeros({1, 1, 4, 3}, {kI64}));
  refused(q, k, k, Tensor::zeros({1, 1, 3, 2}, {kI64}));
}

TEST(PlainAttention, OneFirstKeyForAllQueries) {
  const Tensor q = Tensor::randn({1, 2, 4, 8}), k = Tensor::randn({1, 2, 6, 8});
  const Tensor expected = ops::scaled_dot_product_attention(q, k, k, Tensor::full({1, 1, 4, 1}, 2, {kI64}));
  EXPECT_TRUE(same_bits(ops::scaled_dot_product_attention(q, k, k, Tensor::scalar<int64_t>(2)), expected));
  EXPECT_LT(difference(ops::plain_attention(q, k, k, Tensor::scalar<int64_t>(2)), expected), 1e-6);
}

TEST(PlainAttention, KeysFromAndTo) {
  const Tensor q = Tensor::randn({2, 4, 3, 8}), k = Tensor::randn({2, 2, 6, 8});
  const Tensor keys = Tensor::from<int32_t>({0, 2, 1, 9, 4, 3, 5, 6, -1, 1, 2, 5}, {2, 1, 3, 2});
  Tensor allowed = Tensor::full({2, 1, 3, 6}, false, {kBool});
  const std::vector<std::pair<int64_t, int64_t>> bounds = {{0, 2}, {1, 6}, {4, 4}, {5, 6}, {0, 1}, {2, 5}};
  for (size_t row = 0; row < bounds.size(); ++row)
    for (int64_t j = bounds[row].first; j < bounds[row].second; ++j)
      allowed.flatten()[static_cast<int64_t>(row) * 6 + j].fill_(true);
  const Tensor expected = ops::plain_attention(q, k, k, allowed);
  EXPECT_LT(difference(ops::scaled_dot_product_attention(q, k, k, keys), expected), 1e-6);
  EXPECT_LT(difference(ops::plain_attention(q, k, k, keys), expected), 1e-6);
}

TEST(Memory, AttentionWithDropoutIsLinearInTheLength) {
  const auto peak = [](int64_t T) {
    Tensor qkv[3];
    for (Tensor& t : qkv) t = Tensor::randn({1, 4, T, 16}).requires_grad_();
    const memory::Recording recording;
    const int64_t before = recording.report().in_use();
    const Tensor out = ops::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, {.causal = true, .dropout = 0.1});
    ops::sum(out).backward();
    return recording.report().in_use() - before;
  };
  const int64_t T = 2048, elements = 4 * T * 16;
  const int64_t bytes = peak(T);
  EXPECT_GT(bytes, 3 * elements * 4);  // the gradients at least
  EXPECT_LT(bytes, 4 * T * T * 4 / 8);
  EXPECT_LT(bytes, 2.2 * static_cast<double>(peak(T / 2)));
}

}  // namespace
}  // namespace rondo
