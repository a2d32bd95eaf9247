// CPU attention against the formula in double precision, finite differences, and itself on other thread counts.
#include "rondo/runtime/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/random/random.h"

namespace rondo::cpu {
namespace {

enum class MaskKind { kNone, kBool, kBias, kKeyPadding, kFirstKey, kKeys };

struct Case {
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  bool causal = false;
  MaskKind mask = MaskKind::kNone;
  double dropout = 0;
};

std::string describe(const Case& c) {
  std::string s;
  for (int64_t n : {c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.head_dim}) s += std::to_string(n) + " ";
  return s + (c.causal ? "causal " : "") + "mask " + std::to_string(static_cast<int>(c.mask)) + " dropout " +
         std::to_string(c.dropout);
}

template <class T> T convert(double x) { return T(static_cast<float>(x)); }
template <> double convert<double>(double x) { return x; }

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kUntouched = 1234;

// A [B, H, T, D] view of [B, T, H, D] memory whose rows are `pad` elements too long, to catch stray writes.
template <class T> struct Heads {
  static constexpr int64_t kPad = 3;
  int64_t batch, heads, rows, dim;
  std::vector<T> memory;

  Heads(int64_t batch, int64_t heads, int64_t rows, int64_t dim)
      : batch(batch),
        heads(heads),
        rows(rows),
        dim(dim),
        memory(batch * rows * (heads * dim + kPad), convert<T>(kUntouched)) {}
  HeadsView<T> view() { return {memory.data(), rows * row_stride(), dim, row_stride()}; }
  HeadsView<const T> view() const { return {memory.data(), rows * row_stride(), dim, row_stride()}; }
  int64_t row_stride() const { return heads * dim + kPad; }
  T& at(int64_t b, int64_t h, int64_t t, int64_t i) { return memory[(b * rows + t) * row_stride() + h * dim + i]; }
  double get(int64_t b, int64_t h, int64_t t, int64_t i) const {
    return static_cast<double>(memory[(b * rows + t) * row_stride() + h * dim + i]);
  }
  void fill(std::mt19937& rng) {
    std::normal_distribution<double> normal;
    for (T& x : memory) x = convert<T>(normal(rng));
  }
  bool padding_untouched() const {
    for (int64_t r = 0; r < batch * rows; ++r)
      for (int64_t i = heads * dim; i < row_stride(); ++i)
        if (static_cast<double>(memory[r * row_stride() + i]) != static_cast<double>(convert<T>(kUntouched)))
          return false;
    return true;
  }
};

template <class T> struct Problem {
  Case c;
  AttentionShape shape;
  Heads<T> q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  std::vector<AttentionAccumulator<T>> logsumexp;
  std::unique_ptr<bool[]> allowed;
  std::vector<T> bias;
  std::vector<int64_t> first_key;
  AttentionMask<T> mask;

  explicit Problem(const Case& c, uint32_t seed = 1)
      : c(c),
        shape{c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.head_dim, c.causal, 0.7 / std::sqrt(c.head_dim)},
        q(c.batch, c.heads, c.queries, c.head_dim),
        k(c.batch, c.kv_heads, c.keys, c.head_dim),
        v(k),
        out(q),
        grad_out(q),
        grad_q(q),
        grad_k(k),
        grad_v(k),
        logsumexp(c.batch * c.heads * c.queries) {
    shape.dropout = {.p = c.dropout, .seed = 99, .offset = uint64_t{5} << 40};
    std::mt19937 rng(seed);
    for (auto* x : {&q, &k, &v, &grad_out}) x->fill(rng);
    std::bernoulli_distribution coin(0.6);
    if (c.mask == MaskKind::kBool) {  // [B, 1, Tq, Tk]; the first query of a batch sees nothing.
      allowed.reset(new bool[c.batch * c.queries * c.keys]);
      for (int64_t i = 0; i < c.batch * c.queries * c.keys; ++i) allowed[i] = coin(rng) && i / c.keys % c.queries != 0;
      mask = {.allowed = allowed.get(), .strides = {c.queries * c.keys, 0, c.keys, 1}};
    } else if (c.mask == MaskKind::kBias) {  // [H, Tk, Tq] transposed: keys are not adjacent.
      bias.resize(c.heads * c.keys * c.queries);
      for (T& x : bias) x = convert<T>(coin(rng) ? std::normal_distribution<double>()(rng) : -kInf);
      mask = {.bias = bias.data(), .strides = {0, c.keys * c.queries, 1, c.queries}};
    } else if (c.mask == MaskKind::kKeyPadding) {  // [B, 1, 1, Tk]
      bias.resize(c.batch * c.keys);
      for (int64_t i = 0; i < c.batch * c.keys; ++i) bias[i] = convert<T>(2 * (i % c.keys) < c.keys ? 0.5 : -kInf);
      mask = {.bias = bias.data(), .strides = {c.keys, 0, 0, 1}};
    } else if (c.mask == MaskKind::kKeys) {  // [B, 1, Tq, 2]: a window behind each query; some end where they begin.
      first_key.resize(c.batch * c.queries * 2);
      for (size_t i = 0; i < first_key.size(); i += 2) {
        const int64_t row = static_cast<int64_t>(i) / 2, query = row % c.queries, end = query * 3 / 2 + 5;
        constexpr std::numeric_limits<int64_t> kNumbers;  // the least and the largest: no bound
        first_key[i] = row % 31 == 0 ? kNumbers.min()
                                     : std::max<int64_t>(-2, end - 90 - static_cast<int64_t>(rng() % 8));
        first_key[i + 1] = row % 17 == 16 ? first_key[i] : row % 53 == 0 ? kNumbers.max() : end;
      }
      mask = {.first_key = first_key.data(), .end_key = first_key.data() + 1, .strides = {c.queries * 2, 0, 2, 0}};
    } else if (c.mask ==
               MaskKind::kFirstKey) {  // [B, H, Tq, 1]: runs of queries; -2 allows all keys, the last run none.
      first_key.resize(c.batch * c.heads * c.queries);
      for (size_t i = 0; i < first_key.size(); ++i) {
        const int64_t query = static_cast<int64_t>(i) % c.queries, run = 37 + 11 * static_cast<int64_t>(rng() % 2);
        first_key[i] = query % 97 == 96 ? -2 : query > 200 ? c.keys : std::min(query / run * run, c.keys);
      }
      mask = {.first_key = first_key.data(), .strides = {c.heads * c.queries, c.queries, 1, 0}};
    }
  }

  double mask_at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t at = b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2] + j * mask.strides[3];
    if (c.causal && j > i) return -kInf;
    if (mask.allowed) return mask.allowed[at] ? 0 : -kInf;
    if (mask.first_key) return j >= mask.first_key[at] && (!mask.end_key || j < mask.end_key[at]) ? 0 : -kInf;
    return mask.bias ? static_cast<double>(mask.bias[at]) : 0;
  }
  // What dropout multiplies a weight by: Note [Dropped weights] in ops/attention.cc.
  double factor_at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c.dropout == 0) return 1;
    const auto counter = static_cast<uint64_t>(((b * c.heads + h) * c.queries + i) * ((c.keys + 3) / 4) + j / 4);
    const uint32_t word = philox(shape.dropout.seed, counter, shape.dropout.offset)[static_cast<size_t>(j % 4)];
    return c.dropout == 1 || word < c.dropout * 0x1p32 ? 0 : 1 / (1 - c.dropout);
  }
  void forward() { attention_forward<T>(shape, in(q), in(k), in(v), mask, out.view(), logsumexp.data()); }
  void backward() {
    attention_backward<T>(shape, in(q), in(k), in(v), mask, in(out), logsumexp.data(), in(grad_out), grad_q.view(),
                          grad_k.view(), grad_v.view());
  }
  static HeadsView<const T> in(const Heads<T>& x) { return x.view(); }
};

// The formula, in double, from the inputs of `p`.
struct Reference {
  Heads<double> out, grad_q, grad_k, grad_v;
  std::vector<double> logsumexp;

  template <class T>
  explicit Reference(const Problem<T>& p)
      : out(p.c.batch, p.c.heads, p.c.queries, p.c.head_dim),
        grad_q(out),
        grad_k(p.c.batch, p.c.kv_heads, p.c.keys, p.c.head_dim),
        grad_v(grad_k) {
    for (auto* x : {&out, &grad_q, &grad_k, &grad_v}) std::fill(x->memory.begin(), x->memory.end(), 0.0);
    const int64_t d = p.c.head_dim, keys = p.c.keys, group = p.c.heads / p.c.kv_heads;
    std::vector<double> weight(keys), grad_weight(keys);
    for (int64_t b = 0; b < p.c.batch; ++b) {
      for (int64_t h = 0; h < p.c.heads; ++h) {
        for (int64_t i = 0; i < p.c.queries; ++i) {
          double top = -kInf, sum = 0, delta = 0;
          for (int64_t j = 0; j < keys; ++j) {
            double s = 0;
            for (int64_t e = 0; e < d; ++e) s += p.q.get(b, h, i, e) * p.k.get(b, h / group, j, e);
            weight[j] = s * p.shape.scale + p.mask_at(b, h, i, j);
            top = std::max(top, weight[j]);
          }
          if (top == -kInf) {
            logsumexp.push_back(-kInf);
            continue;
          }
          for (int64_t j = 0; j < keys; ++j) sum += weight[j] = std::exp(weight[j] - top);
          logsumexp.push_back(top + std::log(sum));
          for (int64_t j = 0; j < keys; ++j) {
            weight[j] /= sum;
            grad_weight[j] = 0;
            const double factor = p.factor_at(b, h, i, j);
            for (int64_t e = 0; e < d; ++e) {
              out.at(b, h, i, e) += weight[j] * factor * p.v.get(b, h / group, j, e);
              grad_weight[j] += p.grad_out.get(b, h, i, e) * factor * p.v.get(b, h / group, j, e);
              grad_v.at(b, h / group, j, e) += weight[j] * factor * p.grad_out.get(b, h, i, e);
            }
            delta += weight[j] * grad_weight[j];
          }
          for (int64_t j = 0; j < keys; ++j) {
            const double grad_score = weight[j] * (grad_weight[j] - delta) * p.shape.scale;
            for (int64_t e = 0; e < d; ++e) {
              grad_q.at(b, h, i, e) += grad_score * p.k.get(b, h / group, j, e);
              grad_k.at(b, h / group, j, e) += grad_score * p.q.get(b, h, i, e);
            }
          }
        }
      }
    }
  }
};

template <class T> void expect_close(const Heads<T>& actual, const Heads<double>& expected, double tolerance) {
  EXPECT_TRUE(actual.padding_untouched());
  double scale = 1e-30, worst = 0;
  for (int64_t n = 0; n < expected.batch * expected.heads * expected.rows * expected.dim; ++n) {
    const int64_t i = n % expected.dim, t = n / expected.dim % expected.rows;
    const int64_t h = n / expected.dim / expected.rows % expected.heads;
    const int64_t b = n / expected.dim / expected.rows / expected.heads;
    const double e = expected.get(b, h, t, i), difference = std::abs(actual.get(b, h, t, i) - e);
    scale = std::max(scale, std::abs(e));
    worst = difference >= worst ? difference : std::isnan(difference) ? kInf : worst;
  }
  EXPECT_LE(worst, tolerance * std::max(1.0, scale));
}

template <class T> double tolerance() {
  if (std::is_same_v<T, double>) return 1e-13;
  if (std::is_same_v<T, float>) return 4e-6;
  return std::is_same_v<T, Float16> ? 2e-3 : 1.6e-2;  // The output is rounded to 11 or 8 bits, then used for delta.
}

template <class T> void check(const Case& c) {
  SCOPED_TRACE(describe(c));
  Problem<T> p(c);
  const Reference reference(p);
  p.forward();
  expect_close(p.out, reference.out, tolerance<T>());
  for (size_t i = 0; i < p.logsumexp.size(); ++i) {
    const double expected = reference.logsumexp[i], actual = p.logsumexp[i];
    if (expected == -kInf) EXPECT_EQ(actual, -kInf);
    else
      EXPECT_NEAR(actual, expected, (sizeof(p.logsumexp[0]) == 8 ? 1e-13 : 4e-6) * std::max(1.0, std::abs(expected)));
  }
  p.backward();
  expect_close(p.grad_q, reference.grad_q, tolerance<T>());
  expect_close(p.grad_k, reference.grad_k, tolerance<T>());
  expect_close(p.grad_v, reference.grad_v, tolerance<T>());
}

template <class T> class AttentionTest : public testing::Test {};
using ElementTypes = testing::Types<double, float, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionTest, ElementTypes);

TYPED_TEST(AttentionTest, Lengths) {
  for (const bool causal : {false, true})
    for (const int64_t queries : {1, 7, 16, 17, 64, 65, 130})
      for (const int64_t keys : {1, 9, 64, 65, 100, 200}) check<TypeParam>({1, 2, 2, queries, keys, 16, causal});
}

TYPED_TEST(AttentionTest, HeadDims) {
  for (const bool causal : {false, true})
    for (const int64_t head_dim : {1, 5, 8, 15, 16, 24, 32, 48, 64, 65, 96, 128})
      check<TypeParam>({2, 1, 1, 70, 70, head_dim, causal});
}

TYPED_TEST(AttentionTest, GroupedQueries) {
  for (const bool causal : {false, true}) {
    check<TypeParam>({2, 6, 2, 70, 70, 16, causal});
    check<TypeParam>({3, 8, 1, 33, 150, 24, causal});
    check<TypeParam>({5, 4, 4, 150, 150, 16, causal});  // More pairs than backward's shares.
    check<TypeParam>({1, 1, 1, 700, 700, 16, causal});  // Fewer.
  }
}

TYPED_TEST(AttentionTest, Masks) {
  for (const bool causal : {false, true}) {
    for (const MaskKind kind :
         {MaskKind::kBool, MaskKind::kBias, MaskKind::kKeyPadding, MaskKind::kFirstKey, MaskKind::kKeys}) {
      check<TypeParam>({2, 2, 2, 70, 70, 16, causal, kind});
      check<TypeParam>({1, 2, 1, 270, 270, 8, causal, kind});
      check<TypeParam>({2, 4, 2, 7, 130, 24, causal, kind});
      check<TypeParam>({1, 2, 1, 140, 50, 5, causal, kind});
    }
  }
}

TYPED_TEST(AttentionTest, Dropout) {
  for (const bool causal : {false, true}) {
    for (const double p : {0.1, 0.5, 1.0})
      for (const MaskKind kind :
           {MaskKind::kNone, MaskKind::kBool, MaskKind::kBias, MaskKind::kFirstKey, MaskKind::kKeys}) {
        check<TypeParam>({2, 2, 2, 70, 70, 16, causal, kind, p});
        check<TypeParam>({1, 4, 2, 7, 131, 24, causal, kind, p});
        check<TypeParam>({1, 2, 1, 140, 50, 5, causal, kind, p});
      }
    for (const int64_t queries : {1, 16, 17, 65})
      for (const int64_t keys : {1, 3, 9, 64, 66}) check<TypeParam>({1, 2, 1, queries, keys, 8, causal, {}, 0.3});
    check<TypeParam>({1, 1, 1, 700, 700, 16, causal, {}, 0.2});
    check<TypeParam>({5, 4, 4, 100, 101, 16, causal, {}, 0.2});
  }
}

// Decoding: several chunks of keys, groups of heads, every mask.
TYPED_TEST(AttentionTest, OneQuery) {
  for (const bool causal : {false, true})
    for (const int64_t keys : {1, 15, 16, 17, 31, 256, 257, 700})
      for (const int64_t head_dim : {1, 8, 17, 64, 100, 128}) check<TypeParam>({2, 4, 2, 1, keys, head_dim, causal});
  check<TypeParam>({1, 7, 1, 1, 600, 80});
  for (const MaskKind kind : {MaskKind::kBias, MaskKind::kKeyPadding, MaskKind::kFirstKey, MaskKind::kKeys})
    for (const int64_t keys : {5, 300, 530}) check<TypeParam>({2, 6, 3, 1, keys, 24, false, kind});
  // MaskKind::kBool leaves the first query nothing: a mask of its own, and one of each head.
  for (const bool of_head : {false, true}) {
    Problem<TypeParam> p({2, 4, 2, 1, 530, 24, false, MaskKind::kBool});
    p.allowed.reset(new bool[4 * 530]);
    std::mt19937 rng(3);
    for (int64_t i = 0; i < 4 * 530; ++i) p.allowed[i] = rng() % 3 != 0;
    p.mask = {.allowed = p.allowed.get(), .strides = {of_head ? 0 : 530, of_head ? 530 : 0, 0, 1}};
    const Reference reference(p);
    p.forward();
    expect_close(p.out, reference.out, tolerance<TypeParam>());
    for (size_t i = 0; i < p.logsumexp.size(); ++i) EXPECT_NEAR(p.logsumexp[i], reference.logsumexp[i], 4e-5);
  }
}

// A cache holds anything outside of a row's tokens.
TYPED_TEST(AttentionTest, OneQueryLeavesMaskedEndsAlone) {
  Problem<TypeParam> p({1, 2, 1, 1, 600, 16});
  p.allowed.reset(new bool[600]);
  for (int64_t j = 0; j < 600; ++j) p.allowed[j] = j >= 37 && j < 301;
  p.mask = {.allowed = p.allowed.get(), .strides = {0, 0, 0, 1}};
  const Reference reference(p);
  for (int64_t j = 0; j < 600; ++j)
    if (!p.allowed[j]) p.k.at(0, 0, j, 3) = p.v.at(0, 0, j, 3) = convert<TypeParam>(kNan);
  p.forward();
  expect_close(p.out, reference.out, tolerance<TypeParam>());
}

TYPED_TEST(AttentionTest, OneQueryFromItsFirstKey) {
  Problem<TypeParam> p({2, 4, 2, 1, 530, 24, false, MaskKind::kFirstKey});
  p.first_key = {3, 300, 257, 530, -1, 0, 529, 100};  // of each head
  p.mask.first_key = p.first_key.data();
  const Reference reference(p);
  p.forward();
  expect_close(p.out, reference.out, tolerance<TypeParam>());
}

// Keys before all first keys of a tile of queries are not read.
TYPED_TEST(AttentionTest, FirstKeysLeaveTilesOut) {
  Problem<TypeParam> p({1, 2, 1, 200, 200, 16, true, MaskKind::kFirstKey});
  for (int64_t i = 0; i < 400; ++i) p.first_key[i] = i % 200 < 128 ? 0 : 128;
  for (int64_t j = 0; j < 128; ++j) p.k.at(0, 0, j, 3) = p.v.at(0, 0, j, 3) = convert<TypeParam>(kNan);
  p.forward();
  p.backward();
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 128; i < 200; ++i) {
      EXPECT_TRUE(std::isfinite(p.out.get(0, h, i, 3)));
      EXPECT_TRUE(std::isfinite(p.grad_q.get(0, h, i, 3)));
      EXPECT_TRUE(std::isfinite(p.grad_k.get(0, 0, i, 3)));
    }
}

TYPED_TEST(AttentionTest, FullyMaskedRowsGiveZero) {
  Problem<TypeParam> p({1, 2, 2, 70, 70, 16, false, MaskKind::kBool});
  std::fill_n(p.allowed.get(), 70 * 70, false);
  p.forward();
  p.backward();
  for (const auto& x : p.logsumexp) EXPECT_EQ(static_cast<double>(x), -kInf);
  for (const auto* x : {&p.out, &p.grad_q, &p.grad_k, &p.grad_v})
    for (int64_t n = 0; n < 70 * 2 * 16; ++n) EXPECT_EQ(x->get(0, n / 16 % 2, n / 32, n % 16), 0.0);
}

TYPED_TEST(AttentionTest, NoKeys) {
  Problem<TypeParam> p({1, 2, 2, 3, 0, 4});
  p.forward();
  p.backward();
  for (const auto* x : {&p.out, &p.grad_q})
    for (int64_t n = 0; n < 3 * 2 * 4; ++n) EXPECT_EQ(x->get(0, n / 4 % 2, n / 8, n % 4), 0.0);
}

TYPED_TEST(AttentionTest, NanPropagates) {
  Problem<TypeParam> p({1, 1, 1, 70, 70, 16, true});
  p.q.at(0, 0, 40, 3) = convert<TypeParam>(kNan);
  p.forward();
  p.backward();
  for (int64_t t = 0; t < 70; ++t) EXPECT_EQ(std::isnan(p.out.get(0, 0, t, 0)), t == 40) << t;
  EXPECT_TRUE(std::isnan(static_cast<double>(p.logsumexp[40])));
  EXPECT_TRUE(std::isnan(p.grad_q.get(0, 0, 40, 0)));
  EXPECT_TRUE(std::isnan(p.grad_v.get(0, 0, 10, 0)));
  EXPECT_FALSE(std::isnan(p.grad_q.get(0, 0, 39, 0)));

  Problem<TypeParam> by_value({1, 1, 1, 70, 70, 16});
  by_value.v.at(0, 0, 69, 5) = convert<TypeParam>(kNan);
  by_value.forward();
  for (int64_t t = 0; t < 70; ++t) {
    EXPECT_TRUE(std::isnan(by_value.out.get(0, 0, t, 5)));
    EXPECT_FALSE(std::isnan(by_value.out.get(0, 0, t, 4)));
  }
}

// Scores of hundreds in either direction: the maximum must be subtracted, and the scale may be negative.
TYPED_TEST(AttentionTest, LargeScores) {
  for (const double scale : {40.0, -40.0}) {
    Problem<TypeParam> p({1, 1, 1, 70, 200, 16});
    p.shape.scale = scale;
    p.forward();
    p.backward();
    for (const auto* x : {&p.out, &p.grad_q, &p.grad_k, &p.grad_v})
      for (int64_t t = 0; t < x->rows; ++t) EXPECT_TRUE(std::isfinite(x->get(0, 0, t, 0)));
    for (const auto& x : p.logsumexp) EXPECT_GT(static_cast<double>(x), 20);
  }
}

TYPED_TEST(AttentionTest, SameBitsOnEveryThreadCount) {
  const int before = num_threads();
  for (const Case& c : {Case{3, 2, 2, 200, 200, 24, true}, Case{1, 1, 1, 700, 300, 16, false},
                        Case{1, 4, 2, 300, 300, 32, true, MaskKind::kBool}, Case{2, 4, 1, 1, 1000, 40, false},
                        Case{1, 2, 1, 300, 301, 16, true, MaskKind::kNone, 0.3}}) {
    SCOPED_TRACE(describe(c));
    set_num_threads(1);
    Problem<TypeParam> one(c);
    one.forward();
    one.backward();
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      Problem<TypeParam> many(c);
      many.forward();
      many.backward();
      const auto equal = [](const auto& a, const auto& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
      };
      EXPECT_TRUE(equal(one.out.memory, many.out.memory));
      EXPECT_TRUE(equal(one.logsumexp, many.logsumexp));
      EXPECT_TRUE(equal(one.grad_q.memory, many.grad_q.memory));
      EXPECT_TRUE(equal(one.grad_k.memory, many.grad_k.memory));
      EXPECT_TRUE(equal(one.grad_v.memory, many.grad_v.memory));
    }
  }
  set_num_threads(before);
}

// d/dx of sum(out * grad_out) by central differences.
TEST(AttentionGradientTest, FiniteDifferences) {
  for (const Case& c :
       {Case{1, 2, 1, 9, 11, 5, true}, Case{2, 2, 2, 66, 66, 3, false, MaskKind::kBias},
        Case{1, 2, 2, 5, 70, 17, false, MaskKind::kBool}, Case{1, 2, 1, 40, 70, 6, true, MaskKind::kNone, 0.4}}) {
    SCOPED_TRACE(describe(c));
    Problem<double> p(c);
    p.forward();
    p.backward();
    const auto loss = [&] {
      Heads<double> out(p.out);
      std::vector<double> logsumexp(p.logsumexp);
      attention_forward<double>(p.shape, p.in(p.q), p.in(p.k), p.in(p.v), p.mask, out.view(), logsumexp.data());
      double sum = 0;
      for (int64_t n = 0; n < c.batch * c.heads * c.queries * c.head_dim; ++n) {
        const int64_t i = n % c.head_dim, t = n / c.head_dim % c.queries, bh = n / c.head_dim / c.queries;
        sum += out.get(bh / c.heads, bh % c.heads, t, i) * p.grad_out.get(bh / c.heads, bh % c.heads, t, i);
      }
      return sum;
    };
    std::mt19937 rng(7);
    for (auto [x, grad] : {std::pair{&p.q, &p.grad_q}, {&p.k, &p.grad_k}, {&p.v, &p.grad_v}}) {
      for (int trial = 0; trial < 12; ++trial) {
        const int64_t b = rng() % x->batch, h = rng() % x->heads, t = rng() % x->rows, i = rng() % x->dim;
        const double kept = x->at(b, h, t, i), step = 1e-5;
        x->at(b, h, t, i) = kept + step;
        const double above = loss();
        x->at(b, h, t, i) = kept - step;
        const double below = loss();
        x->at(b, h, t, i) = kept;
        EXPECT_NEAR((above - below) / (2 * step), grad->get(b, h, t, i), 1e-8);
      }
    }
  }
}

// q, k and v as slices of one [B, T, 3C] projection, gradients into slices of another. Rows are an even number of
// elements apart; in a Problem of this shape they are not, so pairs of bf16 are read in place here and copied there.
TYPED_TEST(AttentionTest, PackedProjection) {
  using T = TypeParam;
  const Case c{2, 3, 3, 70, 70, 16, true};
  Problem<T> p(c);
  p.forward();
  p.backward();
  const int64_t channels = c.heads * c.head_dim, row = 3 * channels;
  std::vector<T> packed(c.batch * c.queries * row), grads(packed.size());
  const auto slice = [&](auto* data, int64_t part) {
    return HeadsView<std::remove_pointer_t<decltype(data)>>{data + part * channels, c.queries * row, c.head_dim, row};
  };
  const auto for_each = [&](auto&& f) {
    for (int64_t n = 0; n < c.batch * c.queries * channels; ++n)
      for (int64_t part = 0; part < 3; ++part)
        f(part, n / channels * row + part * channels + n % channels, n / channels / c.queries,
          n % channels / c.head_dim, n / channels % c.queries, n % c.head_dim);
  };
  Heads<T>* const inputs[] = {&p.q, &p.k, &p.v};
  Heads<T>* const expected[] = {&p.grad_q, &p.grad_k, &p.grad_v};
  for_each([&](int64_t part, int64_t at, int64_t b, int64_t h, int64_t t, int64_t i) {
    packed[at] = inputs[part]->at(b, h, t, i);
  });
  const T* const data = packed.data();
  Heads<T> out(p.out);
  attention_forward<T>(p.shape, slice(data, 0), slice(data, 1), slice(data, 2), {}, out.view(), p.logsumexp.data());
  EXPECT_TRUE(out.memory == p.out.memory);
  attention_backward<T>(p.shape, slice(data, 0), slice(data, 1), slice(data, 2), {}, p.in(out), p.logsumexp.data(),
                        p.in(p.grad_out), slice(grads.data(), 0), slice(grads.data(), 1), slice(grads.data(), 2));
  for_each([&](int64_t part, int64_t at, int64_t b, int64_t h, int64_t t, int64_t i) {
    EXPECT_TRUE(grads[at] == expected[part]->at(b, h, t, i));
  });
}

}  // namespace
}  // namespace rondo::cpu
