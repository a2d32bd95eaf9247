// Cached forwards give the logits of uncached ones.
#include "rondo/modules/layers/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

constexpr int64_t kVocabulary = 31, kPositions = 40;
constexpr GPT2Config kGPT2 = {
    .vocab_size = kVocabulary, .block_size = kPositions, .n_layer = 2, .n_head = 2, .n_embd = 32};
constexpr LlamaConfig kLlama = {.vocab_size = kVocabulary,
                                .block_size = kPositions,
                                .n_layer = 2,
                                .n_head = 6,
                                .n_kv_head = 2,
                                .n_embd = 48,
                                .n_hidden = 40};

// Qwen's and Mistral's parts: heads of their own size, normed, a window in one layer of two, scaled positions.
LlamaConfig with_parts() {
  LlamaConfig config = kLlama;
  config.head_dim = 10;
  config.qkv_bias = true;
  config.qk_norm = true;
  config.sliding_window = 6;
  config.window_layers = {false, true};
  config.rope_scaling = {.kind = RopeScaling::Kind::kLlama3, .factor = 4, .original_positions = 16};
  return config;
}

// Weights far from zero, so that wrong positions or masks show in the logits.
template <class Model> void make_uneven(Model& model) {
  const NoGrad off;
  for (Tensor p : model.parameters())
    if (p.rank() >= 2) p.mul_(8);
}

std::vector<int64_t> tokens(int64_t n, uint64_t seed) {
  Generator generator(seed);
  return Tensor::randint(0, kVocabulary, {n}, {kI64}, &generator).to_vector<int64_t>();
}

void expect_close(const Tensor& a, const Tensor& b, double tolerance, const std::string& what) {
  EXPECT_TRUE(test::is_close(a.to(kF64), b.to(kF64), test::of_largest_above_1(tolerance))) << what;
}

template <class Model> KVCacheOptions options_of(const Model& model, int64_t batch) {
  KVCacheOptions options = model.cache_options();
  options.batch = batch;
  return options;
}

// Each prefix, token by token.
template <class Model, class Config> void expect_every_length(const Config& config, DType dtype, double tolerance) {
  Model model(config, 3);
  make_uneven(model);
  model.to(dtype);
  model.eval();
  const NoGrad off;
  const Tensor idx = Tensor::from(tokens(2 * kPositions, 1), {2, kPositions});
  const Tensor expected = model(idx);  // (2, T, V)
  KVCache cache(options_of(model, 2));
  EXPECT_EQ(cache.options().dtype, dtype);
  for (int64_t t = 0; t < kPositions; ++t)
    expect_close(model.next_logits(idx.slice(1, {t, t + 1}), cache), expected.select(1, t), tolerance,
                 "token " + std::to_string(t));
  EXPECT_EQ(cache.length(0), kPositions);
  // A prompt at once, then pieces of several tokens.
  for (const int64_t first : {1, 7, 39}) {
    cache.reset();
    expect_close(model.cached_logits(idx.slice(1, {0, first}), cache), expected.slice(1, {0, first}), tolerance,
                 "prompt");
    for (int64_t t = first; t < kPositions; t += 5) {
      const Slice piece = {t, std::min(t + 5, kPositions)};
      expect_close(model.cached_logits(idx.slice(1, piece), cache), expected.slice(1, piece), tolerance,
                   "piece at " + std::to_string(t));
    }
  }
}

TEST(KVCache, GPT2AtEveryLength) {
  expect_every_length<GPT2>(kGPT2, kF64, 1e-12);
  expect_every_length<GPT2>(kGPT2, kF32, 1e-5);
  expect_every_length<GPT2>(kGPT2, kBF16, 0.1);
}
TEST(KVCache, LlamaAtEveryLength) {
  expect_every_length<Llama>(kLlama, kF64, 1e-12);
  expect_every_length<Llama>(kLlama, kF32, 1e-5);
  expect_every_length<Llama>(kLlama, kF16, 0.05);
  expect_every_length<Llama>(with_parts(), kF64, 1e-12);
  expect_every_length<Llama>(with_parts(), kF32, 1e-5);
}

// Rows of different lengths, padded on the right, and then pieces of different lengths.
template <class Model, class Config> void expect_padding(const Config& config, DType dtype, double tolerance) {
  Model model(config, 3);
  make_uneven(model);
  model.to(dtype);
  model.eval();
  const NoGrad off;
  const std::vector<std::vector<int64_t>> counts = {{3, 9, 1}, {1, 1, 1}, {1, 0, 1}, {4, 0, 2}, {1, 1, 1}, {7, 1, 6}};
  std::vector<std::vector<int64_t>> rows = {tokens(40, 1), tokens(40, 2), tokens(40, 3)};
  std::vector<Tensor> expected;
  for (const auto& row : rows) expected.push_back(model(Tensor::from(row, {1, 40})));
  KVCache cache(options_of(model, 3));
  for (const std::vector<int64_t>& count : counts) {
    const int64_t T = *std::max_element(count.begin(), count.end());
    std::vector<int64_t> idx;
    const std::vector<int64_t> before(cache.lengths().begin(), cache.lengths().end());
    for (size_t b = 0; b < 3; ++b)
      for (int64_t t = 0; t < T; ++t)  // padding: any token
        idx.push_back(t < count[b] ? rows[b][static_cast<size_t>(before[b] + t)] : (t + 5) % kVocabulary);
    const Tensor logits = model.cached_logits(Tensor::from(idx, {3, T}), cache, count);
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t start = before[static_cast<size_t>(b)], n = count[static_cast<size_t>(b)];
      ASSERT_EQ(cache.length(b), start + n);
      if (n > 0)
        expect_close(logits.select(0, b).slice(0, {0, n}),
                     expected[static_cast<size_t>(b)].select(0, 0).slice(0, {start, start + n}), tolerance,
                     "row " + std::to_string(b) + " at " + std::to_string(start));
    }
  }
  // The last real token's logits only.
  cache.reset();
  const std::vector<int64_t> count = {2, 5, 3};
  std::vector<int64_t> idx;
  for (size_t b = 0; b < 3; ++b)
    for (int64_t t = 0; t < 5; ++t) idx.push_back(t < count[b] ? rows[b][static_cast<size_t>(t)] : 0);
  const Tensor last = model.next_logits(Tensor::from(idx, {3, 5}), cache, count);
  for (int64_t b = 0; b < 3; ++b)
    expect_close(last.select(0, b),
                 expected[static_cast<size_t>(b)].select(0, 0).select(0, count[static_cast<size_t>(b)] - 1), tolerance,
                 "last of row " + std::to_string(b));
}

TEST(KVCache, RowsOfDifferentLengths) {
  expect_padding<GPT2>(kGPT2, kF64, 1e-12);
  expect_padding<Llama>(kLlama, kF64, 1e-12);
  expect_padding<GPT2>(kGPT2, kF32, 1e-5);
  expect_padding<Llama>(kLlama, kF32, 1e-5);
  expect_padding<Llama>(with_parts(), kF64, 1e-12);
}

// What a row held before, and what padding computed, must not reach a later token, not even as 0 * NaN.
TEST(KVCache, StaleSlotsAreNeverRead) {
  GPT2 model(kGPT2, 3);
  model.eval();
  const NoGrad off;
  const std::vector<int64_t> row = tokens(12, 1);
  KVCache cache(options_of(model, 2));
  for (int64_t layer = 0; layer < 2; ++layer)
    for (Tensor buffer : {cache.keys(layer), cache.values(layer)})
      buffer.fill_(std::numeric_limits<double>::quiet_NaN());
  const std::vector<int64_t> counts = {5, 2};
  std::vector<int64_t> idx(10, 0);
  std::copy_n(row.begin(), 5, idx.begin());
  std::copy_n(row.begin(), 2, idx.begin() + 5);
  model.next_logits(Tensor::from(idx, {2, 5}), cache, counts);
  const Tensor expected = model(Tensor::from(row, {1, 12}));
  const std::vector<int64_t> pieces = {3, 2};
  const std::vector<int64_t> more = {row[5], row[6], row[7], row[2], row[3], 0};
  const Tensor logits = model.next_logits(Tensor::from(more, {2, 3}), cache, pieces);
  expect_close(logits.select(0, 0), expected.select(0, 0).select(0, 7), 1e-5, "pieces");
  expect_close(logits.select(0, 1), expected.select(0, 0).select(0, 3), 1e-5, "pieces");
  const Tensor one = model.next_logits(Tensor::from({row[8], row[4]}, {2, 1}), cache);
  expect_close(one.select(0, 0), expected.select(0, 0).select(0, 8), 1e-5, "one");
  expect_close(one.select(0, 1), expected.select(0, 0).select(0, 4), 1e-5, "one");
}

// A window of W: a token sees itself and the W - 1 tokens before it, in every way through a cache.
TEST(KVCache, SlidingWindow) {
  const int64_t B = 2, H = 4, kv = 2, T = 12, D = 8;
  const Tensor q = Tensor::randn({B, H, T, D}, kF64), k = Tensor::randn({B, kv, T, D}, kF64),
               v = Tensor::randn({B, kv, T, D}, kF64);
  for (const int64_t window : {1, 3, 5, 12, 20}) {
    Tensor mask = Tensor::empty({T, T}, {kBool, kCPU});
    for (int64_t i = 0; i < T; ++i)
      for (int64_t j = 0; j < T; ++j) mask.mutable_data<bool>()[i * T + j] = j <= i && i - j < window;
    mask = mask.to(default_device());
    const Tensor expected = ops::plain_attention(q, k, v, mask);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{12}, {5, 1, 1, 5}, {1, 1, 6, 4}}) {
      KVCache cache({.layers = 1, .batch = B, .kv_heads = kv, .max_length = T, .head_dim = D, .dtype = kF64});
      int64_t at = 0;
      for (const int64_t n : pieces) {
        KVCache::Pass pass(cache, n);
        const auto part = [&](const Tensor& t) { return t.slice(2, {at, at + n}); };
        expect_close(pass.attend(0, part(q), part(k), part(v), {.window = window}), part(expected), 1e-12,
                     "window " + std::to_string(window) + " at " + std::to_string(at));
        pass.finish();
        at += n;
      }
    }
    // Rows at different slots.
    KVCache cache({.layers = 1, .batch = B, .kv_heads = kv, .max_length = T, .head_dim = D, .dtype = kF64});
    const std::vector<int64_t> counts = {4, 7};
    {
      KVCache::Pass pass(cache, 7, counts);
      const auto part = [&](const Tensor& t) { return t.slice(2, {0, 7}); };
      pass.attend(0, part(q), part(k), part(v), {.window = window});
      pass.finish();
    }
    KVCache::Pass pass(cache, 1);
    const auto next = [&](const Tensor& t) {
      return ops::cat({t.slice(0, {0, 1}).slice(2, {4, 5}), t.slice(0, {1, 2}).slice(2, {7, 8})});
    };
    expect_close(pass.attend(0, next(q), next(k), next(v), {.window = window}), next(expected), 1e-12, "rows");
  }
}

TEST(KVCache, TrimAndReorder) {
  Llama model(kLlama, 3);
  make_uneven(model);
  model.to(kF64);
  model.eval();
  const NoGrad off;
  const std::vector<int64_t> a = tokens(9, 1), b = tokens(9, 2);
  std::vector<int64_t> both = a;
  both.insert(both.end(), b.begin(), b.end());
  KVCache cache(options_of(model, 2));
  model.next_logits(Tensor::from(both, {2, 9}), cache);
  cache.trim(1, 4);
  cache.trim(20);  // nothing is longer
  EXPECT_EQ(std::vector<int64_t>(cache.lengths().begin(), cache.lengths().end()), (std::vector<int64_t>{9, 4}));
  cache.reorder(std::vector<int64_t>{1, 0});
  EXPECT_EQ(std::vector<int64_t>(cache.lengths().begin(), cache.lengths().end()), (std::vector<int64_t>{4, 9}));
  const Tensor logits = model.next_logits(Tensor::from({b[4], int64_t{7}}, {2, 1}), cache);
  expect_close(logits.select(0, 0), model(Tensor::from(b, {1, 9})).select(0, 0).select(0, 4), 1e-12, "row of b");
  std::vector<int64_t> longer = a;
  longer.push_back(7);
  expect_close(logits.select(0, 1), model(Tensor::from(longer, {1, 10})).select(0, 0).select(0, 9), 1e-12, "row of a");
  // A beam: both rows go on from one.
  cache.reorder(std::vector<int64_t>{1, 1});
  const Tensor twins = model.next_logits(Tensor::from<int64_t>({3, 3}, {2, 1}), cache);
  EXPECT_EQ(twins.select(0, 0).to_vector<double>(), twins.select(0, 1).to_vector<double>());
  cache.reset();
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_THROW(cache.reorder(std::vector<int64_t>{0}), Error);
  EXPECT_THROW(cache.reorder(std::vector<int64_t>{0, 2}), Error);
  EXPECT_THROW(cache.trim(-1), Error);
  EXPECT_THROW(cache.trim(2, 0), Error);
}

TEST(KVCache, SizesAndErrors) {
  KVCache cache({.layers = 3, .batch = 2, .kv_heads = 2, .max_length = 10, .head_dim = 8, .dtype = kBF16});
  EXPECT_EQ(cache.bytes(), 3 * 2 * 2 * 2 * 10 * 8 * 2);
  EXPECT_EQ(cache.keys(2).sizes(), (Dims{2, 2, 10, 8}));
  EXPECT_THROW(cache.keys(3), Error);
  EXPECT_THROW(cache.length(2), Error);
  EXPECT_THROW(KVCache({.layers = 1, .batch = 1, .kv_heads = 1, .max_length = 0, .head_dim = 8}), Error);
  EXPECT_THROW(KVCache({.layers = 1, .batch = 1, .kv_heads = 1, .max_length = 4, .head_dim = 8, .dtype = kI64}), Error);
  EXPECT_THROW(KVCache({.layers = int64_t{1} << 40, .kv_heads = 1, .max_length = int64_t{1} << 40, .head_dim = 8}),
               Error);
  const std::vector<int64_t> three = {1, 1, 1}, more = {3, 5}, ten = {10, 2};
  EXPECT_THROW(KVCache::Pass(cache, 0), Error);
  EXPECT_THROW(KVCache::Pass(cache, 4, three), Error);
  EXPECT_THROW(KVCache::Pass(cache, 4, more), Error);
  EXPECT_THROW(KVCache::Pass(cache, 11), KVCacheFullError);
  { KVCache::Pass(cache, 11, ten).finish(); }  // padding needs no room
  const std::string full = test::error_of<KVCacheFullError>([&] { KVCache::Pass(cache, 1); });
  EXPECT_NE(full.find("row 0 holds 10 of at most 10 tokens, so 1 more do not fit"), std::string::npos) << full;
  EXPECT_THROW(KVCache::Pass(cache, INT64_MAX), KVCacheFullError);

  GPT2 model(kGPT2, 1);
  const NoGrad off;
  KVCache own(options_of(model, 1));
  const Tensor token = Tensor::zeros({1, 1}, {kI64});
  EXPECT_THROW(model.next_logits(token, cache), Error);                        // of another model
  EXPECT_THROW(model.next_logits(Tensor::zeros({2, 1}, {kI64}), own), Error);  // another batch
  EXPECT_THROW(model.next_logits(Tensor::zeros({1, 1}), own), Error);
  EXPECT_THROW(model.next_logits(Tensor::zeros({1, 41}, {kI64}), own), KVCacheFullError);
  model.next_logits(token, own);
  if (default_device() == kCPU) {  // a bad token throws in the middle of the model: the cache stays as it was
    EXPECT_THROW(model.next_logits(Tensor::full({1, 1}, 31, {kI64}), own), Error);
  }
  EXPECT_EQ(own.length(0), 1);
  KVCacheOptions longer = options_of(model, 1);
  longer.max_length = 41;
  KVCache too_long(longer);
  const std::string positions = test::error_of([&] { model.next_logits(token, too_long); });
  EXPECT_NE(positions.find("has room for 41 tokens, but the model has 40 positions"), std::string::npos) << positions;
}

// Silence would be a wrong gradient.
TEST(KVCache, AGradientIsAnError) {
  GPT2 model(kGPT2, 1);
  KVCache cache(options_of(model, 1));
  const std::string error = test::error_of([&] { model.next_logits(Tensor::zeros({1, 2}, {kI64}), cache); });
  EXPECT_NE(error.find("a cached forward has no gradient"), std::string::npos) << error;
  EXPECT_EQ(cache.length(0), 0);
  SelfAttention bidirectional(8, 2, {.causal = false});
  KVCache small({.layers = 1, .batch = 1, .kv_heads = 2, .max_length = 4, .head_dim = 4});
  const NoGrad off;
  KVCache::Pass pass(small, 1);
  EXPECT_THROW(bidirectional(Tensor::ones({1, 1, 8}), pass.layer(0)), Error);
}

// A cache of another dtype than the model's, and autocast, whose dtype the cache takes.
TEST(KVCache, OtherDtypes) {
  GPT2 model(kGPT2, 3);
  model.eval();
  const NoGrad off;
  const Tensor idx = Tensor::from(tokens(10, 1), {1, 10});
  const Tensor expected = model(idx).select(1, 9);
  KVCacheOptions half = options_of(model, 1);
  half.dtype = kBF16;
  KVCache cache(half);
  model.next_logits(idx.slice(1, {0, 9}), cache);
  const Tensor logits = model.next_logits(idx.slice(1, {9, 10}), cache);
  EXPECT_EQ(logits.dtype(), kF32);
  expect_close(logits, expected, 0.02, "bf16 cache");
  const amp::Autocast autocast(kBF16);
  EXPECT_EQ(model.cache_options().dtype, kBF16);
  KVCache lowered(options_of(model, 1));
  for (int64_t t = 0; t < 10; ++t) model.next_logits(idx.slice(1, {t, t + 1}), lowered);
  lowered.trim(9);
  expect_close(model.next_logits(idx.slice(1, {9, 10}), lowered).to(kF32), expected, 0.05, "autocast");
}

// One query for each row: results do not depend on the number of threads, nor on the rows beside it.
TEST(KVCache, DecodingIsTheSameForAnyThreadsAndBatch) {
  GPT2 model(kGPT2, 3);
  make_uneven(model);
  model.eval();
  const NoGrad off;
  const auto run = [&](int64_t batch, int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    KVCache cache(options_of(model, batch));
    Tensor logits;
    const std::vector<int64_t> row = tokens(20, 1);
    for (int64_t t = 0; t < 20; ++t) {
      std::vector<int64_t> idx(static_cast<size_t>(batch), 3);
      idx[0] = row[static_cast<size_t>(t)];
      logits = model.next_logits(Tensor::from(idx, {batch, 1}), cache);
    }
    set_num_threads(before);
    return logits.select(0, 0).to_vector<float>();
  };
  const std::vector<float> alone = run(1, 1);
  EXPECT_EQ(alone, run(1, 3));
  for (const int64_t batch : {2, 3, 4}) EXPECT_EQ(alone, run(batch, 2)) << batch;
}

}  // namespace
}  // namespace rondo::nn
