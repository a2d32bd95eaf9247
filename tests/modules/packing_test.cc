// Several sequences in a row, without contamination: a packed batch gives what its sequences give alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/pretrained_cases.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;
using Rows = std::vector<std::vector<int64_t>>;  // lengths of the sequences of each row

constexpr int64_t kVocab = 61;

Tensor positions_of(const Rows& rows) {
  std::vector<int64_t> all;
  for (const auto& row : rows)
    for (const int64_t n : row)
      for (int64_t i = 0; i < n; ++i) all.push_back(i);
  const auto B = static_cast<int64_t>(rows.size());
  return Tensor::from(all, {B, static_cast<int64_t>(all.size()) / B});
}

struct Family {
  std::string name;
  std::function<std::unique_ptr<ModuleBase>()> make;
};
LlamaConfig llama_config() {
  return {
      .vocab_size = kVocab, .block_size = 256, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 16, .n_hidden = 24};
}
std::vector<Family> families() {
  const auto llama = [](auto change) {
    LlamaConfig config = llama_config();
    change(config);
    return [config] { return std::make_unique<Llama>(config, 3); };
  };
  return {
      {"gpt2",
       [] {
         return std::make_unique<GPT2>(
             GPT2Config{.vocab_size = kVocab, .block_size = 256, .n_layer = 2, .n_head = 2, .n_embd = 16}, 3);
       }},
      {"gpt2, logits in chunks",
       [] {
         return std::make_unique<GPT2>(
             GPT2Config{
                 .vocab_size = kVocab, .block_size = 256, .n_layer = 2, .n_head = 2, .n_embd = 16, .whole_logits = 0},
             3);
       }},
      {"llama", llama([](LlamaConfig&) {})},
      {"llama, logits in chunks", llama([](LlamaConfig& c) { c.whole_logits = 0, c.tie_word_embeddings = true; })},
      {"qwen3", llama([](LlamaConfig& c) { c.qk_norm = true, c.head_dim = 6, c.qkv_bias = true; })},
      {"mistral", llama([](LlamaConfig& c) { c.sliding_window = 9; })},
      {"windows in one layer", llama([](LlamaConfig& c) {
         c.sliding_window = 70, c.window_layers = {false, true};
       })}};
}

Tensor loss_of(ModuleBase& model, const Tensor& idx, const Tensor& targets, const Tensor& positions = {}) {
  if (auto* gpt2 = dynamic_cast<GPT2*>(&model)) return gpt2->loss(idx, targets, positions);
  return dynamic_cast<Llama&>(model).loss(idx, targets, positions);
}
Tensor logits_of(ModuleBase& model, const Tensor& idx, const Tensor& positions = {}) {
  const NoGrad off;
  if (auto* gpt2 = dynamic_cast<GPT2*>(&model)) return (*gpt2)(idx, positions);
  return dynamic_cast<Llama&>(model)(idx, positions);
}

struct Batch {
  Rows rows;
  Tensor idx, targets, positions;
  explicit Batch(Rows given) : rows(std::move(given)) {
    positions = positions_of(rows);
    idx = Tensor::randint(0, kVocab, positions.sizes());
    targets = Tensor::randint(0, kVocab, positions.sizes());
    targets.flatten().slice(0, {0, INT64_MAX, 3}).fill_(-100);
  }
  // Calls fn(row, begin, end) for each sequence.
  template <class F> void for_sequences(F&& fn) const {
    for (size_t row = 0; row < rows.size(); ++row) {
      int64_t begin = 0;
      for (const int64_t n : rows[row]) fn(static_cast<int64_t>(row), begin, begin + n), begin += n;
    }
  }
};
Tensor part(const Tensor& t, int64_t row, int64_t begin, int64_t end) {
  return t.slice(0, {row, row + 1}).slice(1, {begin, end}).contiguous();
}
int64_t count_targets(const Tensor& targets) {
  const std::vector<int64_t> all = targets.to_vector<int64_t>();
  return static_cast<int64_t>(all.size()) - std::count(all.begin(), all.end(), -100);
}

// The largest difference, as a part of the largest value.
double difference(const Tensor& a, const Tensor& b) {
  return test::difference(a.to(kF64), b.to(kF64)) / std::max(1e-30, test::largest(b.to(kF64)));
}

std::vector<Tensor> take_gradients(ModuleBase& model) {
  std::vector<Tensor> out;
  for (const Tensor& p : model.parameters())
    if (p.requires_grad()) out.push_back(p.grad().clone());
  model.zero_grad();
  return out;
}

// Loss and every gradient, packed against alone.
void expect_equal_to_separate(ModuleBase& model, const Batch& batch, double tolerance) {
  const Tensor packed = loss_of(model, batch.idx, batch.targets, batch.positions);
  packed.backward();
  const std::vector<Tensor> together = take_gradients(model);
  const auto all = static_cast<double>(count_targets(batch.targets));
  double loss = 0;
  batch.for_sequences([&](int64_t row, int64_t begin, int64_t end) {
    const Tensor targets = part(batch.targets, row, begin, end);
    const int64_t n = count_targets(targets);
    if (n == 0) return;
    const Tensor alone = loss_of(model, part(batch.idx, row, begin, end), targets) * (static_cast<double>(n) / all);
    alone.backward();
    loss += alone.item();
  });
  EXPECT_NEAR(packed.item(), loss, tolerance * loss);
  const std::vector<Tensor> apart = take_gradients(model);
  ASSERT_EQ(together.size(), apart.size());
  for (size_t i = 0; i < apart.size(); ++i) EXPECT_LE(difference(together[i], apart[i]), tolerance) << i;
}

const Rows kShort = {{5, 9, 1, 7}, {12, 10}};
const Rows kLong = {{70, 3, 100, 27}, {64, 64, 72}};  // across the kernel's tiles of 64

TEST(Packing, LossAndGradientsAreThoseOfTheSequencesAlone) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    for (const Rows& rows : {kShort, kLong}) {
      manual_seed(4);
      const Batch batch(rows);
      const auto model = family.make();
      model->to(kF64);
      expect_equal_to_separate(*model, batch, 1e-12);
      model->to(kF32);
      expect_equal_to_separate(*model, batch, 1e-4);
    }
  }
}

TEST(Packing, ASequenceDoesNotSeeTheOthers) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    for (const DType dtype : {kF64, kF32, kBF16}) {
      manual_seed(4);
      const Batch batch(kLong);
      const auto model = family.make();
      model->to(dtype);
      const Tensor before = logits_of(*model, batch.idx, batch.positions);
      Tensor idx = batch.idx.to(kCPU).clone();  // another second sequence in both rows
      for (const auto& [row, begin, end] : {std::tuple(0, 70, 73), std::tuple(1, 64, 128)})
        for (int64_t i = begin; i < end; ++i) {
          int64_t& id = idx.mutable_data<int64_t>()[row * idx.size(1) + i];
          id = (id + 1) % kVocab;
        }
      const Tensor after = logits_of(*model, idx.to(batch.idx.device()), batch.positions);
      batch.for_sequences([&](int64_t row, int64_t begin, int64_t end) {
        const bool changed = begin == (row == 0 ? 70 : 64);
        EXPECT_EQ(same_bits(part(before, row, begin, end), part(after, row, begin, end)), !changed)
            << name_of(dtype) << " " << row << " " << begin;
      });
    }
  }
}

TEST(Packing, OneSequenceInARowIsThePlainCall) {
  for (const Family& family : families()) {
    manual_seed(4);
    const auto model = family.make();
    model->to(kF64);
    const Batch batch(Rows{{100}, {100}});
    EXPECT_LE(difference(logits_of(*model, batch.idx, batch.positions), logits_of(*model, batch.idx)), 1e-14)
        << family.name;
  }
}

TEST(Packing, WithAdapters) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    manual_seed(4);
    const Batch batch(kShort);
    const auto model = family.make();
    model->to(kF64);
    const bool gpt2 = family.name.starts_with("gpt2");
    add_lora(*model, {.rank = 2,
                      .alpha = 4,
                      .targets = gpt2 ? std::vector<std::string>{"c_attn", "c_fc"}
                                      : std::vector<std::string>{"q_proj", "v_proj"}});
    {
      const NoGrad off;
      for (Tensor& p : model->parameters())
        if (p.requires_grad()) p.add_(Tensor::randn(p.sizes(), {kF64}) * 0.1);
    }
    expect_equal_to_separate(*model, batch, 1e-12);
  }
}

// Activation checkpointing of each block.
TEST(Packing, Recomputed) {
  manual_seed(4);
  const Batch batch(kShort);
  GPT2 model({.vocab_size = kVocab, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 16}, 3);
  const Tensor weights = Tensor::randn({2, batch.idx.size(1), 16});
  const auto gradients = [&](bool recompute) {
    const Tensor first_key = first_keys(batch.idx.size(1), batch.positions);
    Tensor x = model.wte(batch.idx) + model.wpe(batch.positions);
    for (TransformerBlock& block : model.h) {
      const auto run = [&](std::span<const Tensor> in) {
        return std::vector<Tensor>{block(in[0], KVLayer(), first_key)};
      };
      x = recompute ? autograd::checkpoint(run, {&x, 1})[0] : run({&x, 1})[0];
    }
    (model.ln_f(x) * weights).sum().backward();
    return take_gradients(model);
  };
  const std::vector<Tensor> kept = gradients(false), again = gradients(true);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(same_bits(kept[i], again[i])) << i;
}

TEST(Packing, UnderAutocast) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    manual_seed(4);
    const Batch batch(kShort);
    const auto model = family.make();
    const amp::Autocast bf16(kBF16);
    expect_equal_to_separate(*model, batch, 4e-2);
  }
}

// Whichever kind of mask says it, the same weights are dropped.
TEST(Packing, AttentionDropout) {
  manual_seed(4);
  const Batch batch(kShort);
  const int64_t T = batch.idx.size(1);
  const Tensor first_key = first_keys(T, batch.positions);
  const Tensor allowed = ops::less_equal(first_key, Tensor::arange(T));
  const Tensor q = Tensor::randn({2, 2, T, 8}), k = Tensor::randn({2, 2, T, 8}), v = Tensor::randn({2, 2, T, 8});
  const auto with = [&](const Tensor& mask, double dropout) {
    manual_seed(5);
    return ops::scaled_dot_product_attention(q, k, v, mask, {.causal = true, .dropout = dropout});
  };
  EXPECT_LE(difference(with(first_key, 0.3), with(allowed, 0.3)), 1e-6);
  EXPECT_LE(difference(with(first_key, 0), with(allowed, 0)), 1e-6);
  EXPECT_GT(difference(with(first_key, 0.3), with(first_key, 0)), 1e-2);
}

TEST(Packing, FirstKeys) {
  const auto values = [](const Tensor& t) { return t.to_vector<int64_t>(); };
  using Keys = std::vector<int64_t>;
  const Tensor positions = positions_of({{3, 2}});
  EXPECT_EQ(values(first_keys(5, positions)), (Keys{0, 0, 0, 3, 3}));
  EXPECT_EQ(values(first_keys(5, positions, 2)), (Keys{0, 0, 1, 3, 3}));
  EXPECT_EQ(values(first_keys(5, Tensor(), 2)), (Keys{-1, 0, 1, 2, 3}));
  EXPECT_FALSE(first_keys(5, Tensor()).defined());
  EXPECT_EQ(to_string(first_keys(5, positions).sizes()), "[1, 1, 5, 1]");
}

TEST(Packing, RefusesOtherPositions) {
  GPT2 gpt2({.vocab_size = kVocab, .block_size = 16, .n_layer = 1, .n_head = 2, .n_embd = 8});
  LlamaConfig config = llama_config();
  config.block_size = 16;
  Llama llama(config);
  const Tensor idx = Tensor::randint(0, kVocab, {2, 6});
  for (const Tensor& bad : {Tensor::zeros({2, 5}, {kI64}), Tensor::zeros({1, 6}, {kI64}), Tensor::zeros({2, 6})}) {
    EXPECT_NE(error_of([&] { gpt2(idx, bad); }).find("positions must be i64"), std::string::npos);
    EXPECT_NE(error_of([&] { llama(idx, bad); }).find("positions must be i64"), std::string::npos);
  }
  for (const double bad : {-1.0, 16.0}) {
    EXPECT_NE(error_of([&] { gpt2(idx, Tensor::full({2, 6}, bad, {kI64})).to_vector<float>(); }), "");
    EXPECT_NE(error_of([&] { llama(idx, Tensor::full({2, 6}, bad, {kI64})).to_vector<float>(); }), "");
  }
  KVCache cache(gpt2.cache_options());
  EXPECT_NE(error_of([&] {
              const NoGrad off;
              KVCache::Pass pass(cache, 2);
              gpt2.h[0](Tensor::randn({1, 2, 8}), pass.layer(0), Tensor::zeros({1, 1, 2, 1}, {kI64}));
            }),
            "");
}

// tests/reference/record_packed.py
TEST(Packing, AsTransformers) {
  const io::TensorMap recorded =
      io::load_safetensors(std::string(tests::kReferenceDir) + "/packed.safetensors").tensors;
  for (const char* name : {"gpt2", "llama2", "llama3", "llama_bias", "qwen2", "qwen3", "mistral"}) {
    auto model = AutoModelForCausalLM::from_pretrained(recorded_folder(name), {.dtype = kF64});
    const NoGrad off;
    const Tensor &ids = recorded.at("ids"), &positions = recorded.at("positions");
    const std::string prefix = std::string(name) + ".";
    EXPECT_LE(difference(model(ids, positions), recorded.at(prefix + "logits")), 1e-10) << name;
    EXPECT_LE(difference(model.loss(ids, recorded.at("targets"), positions), recorded.at(prefix + "loss")), 1e-10)
        << name;
    EXPECT_GT(difference(model(ids), recorded.at(prefix + "logits")), 1e-2) << name;
  }
}

// From examples to the loss: rows that ExampleBatches packs give what padded rows give.
TEST(Packing, BatchesOfExamples) {
  auto set = std::make_shared<data::ExampleSet>();
  uint32_t state = 3;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int i = 0; i < 9; ++i) {
    data::Example example;
    for (uint32_t n = 2 + next() % 12; n > 0; --n) {
      example.ids.push_back(static_cast<int32_t>(next() % kVocab));
      example.targets.push_back(n == 1 || next() % 3 > 0);
    }
    set->add(example);
  }
  LlamaConfig config = llama_config();
  config.sliding_window = 5;
  Llama model(config, 3);
  model.to(kF64);
  std::vector<double> losses;
  std::vector<std::vector<Tensor>> gradients;
  for (const bool pack : {false, true}) {
    data::ExampleBatches batches(set, {.batch_size = 1000, .max_length = 32, .pack = pack});
    auto batch = batches.next();
    ASSERT_EQ(batches.size(), 1);
    for (Tensor& tensor : *batch) tensor = tensor.to(default_device());
    const Tensor loss = pack ? model.loss((*batch)[0], (*batch)[1], (*batch)[2]) : model.loss((*batch)[0], (*batch)[1]);
    loss.backward();
    losses.push_back(loss.item());
    gradients.push_back(take_gradients(model));
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-12 * losses[0]);
  for (size_t i = 0; i < gradients[0].size(); ++i) EXPECT_LE(difference(gradients[0][i], gradients[1][i]), 1e-12);
}

}  // namespace
}  // namespace rondo::nn
