// Small training runs for the tests of optim/trainer/.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"

namespace rondo::optim::test {

using namespace rondo::test;

inline constexpr int64_t kVocab = 23, kLength = 8;

// Rows of a language model whose targets are masked up to a place that differs from row to row, as prompts are.
class MaskedRows : public data::Dataset {
 public:
  explicit MaskedRows(int64_t rows, uint64_t seed = 1) : rows_(rows), seed_(seed) {}
  int64_t size() const override { return rows_; }
  std::vector<Tensor> get(int64_t index) const override {
    std::vector<int64_t> x, y;
    for (int64_t t = 0; t < kLength; ++t) {
      const auto word = static_cast<int64_t>(philox(seed_, static_cast<uint64_t>(index), 0)[0] % 7);
      x.push_back((word + t * (1 + index % 3)) % kVocab);
      y.push_back(t < index % kLength ? data::kIgnoreIndex : (word + (t + 1) * (1 + index % 3)) % kVocab);
    }
    return {Tensor::from<int64_t>(x, {kLength}), Tensor::from<int64_t>(y, {kLength})};
  }

 private:
  const int64_t rows_;
  const uint64_t seed_;
};

struct Classifier : nn::Module<Classifier> {
  nn::Linear fc = child("fc", 6, 5);
  Tensor forward(const Tensor& x) { return fc(x); }
  // x (B, T, 6), y i64 (B, T)
  Tensor loss(const data::Batch& batch) {
    return ops::cross_entropy(ops::reshape((*this)(batch[0]), {-1, 5}), ops::reshape(batch[1], {-1}));
  }
};

// Rows [begin, end) of four, where row r has r + 1 targets of 4.
inline data::Batch masked_batch(int64_t begin, int64_t end) {
  Generator generator(4);
  const Tensor x = Tensor::randn({4, 4, 6}, {kF64}, &generator);
  std::vector<int64_t> y;
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t t = 0; t < 4; ++t) y.push_back(t <= r ? (3 * r + t) % 5 : data::kIgnoreIndex);
  const Tensor targets = Tensor::from<int64_t>(y, {4, 4});
  return {ops::slice(x, 0, {begin, end}).contiguous(), ops::slice(targets, 0, {begin, end}).contiguous()};
}

// Batches from a list.
class ListSource : public data::BatchSource {
 public:
  explicit ListSource(std::vector<data::Batch> batches) : batches_(std::move(batches)) {}
  std::optional<data::Batch> next() override {
    if (at_.batch >= size()) {
      at_ = {at_.epoch + 1, 0};
      return std::nullopt;
    }
    return batches_[static_cast<size_t>(at_.batch++)];
  }
  Position position() const override { return at_; }
  void seek(Position position) override { at_ = position; }
  int64_t size() const override { return std::ssize(batches_); }

 private:
  const std::vector<data::Batch> batches_;
  Position at_;
};

// Notes what a trainer says. Losses and norms of a run and of one that was resumed must have the same bits.
struct Notes : Callback {
  std::map<int64_t, double> losses, norms, rates, evals;
  std::vector<int64_t> saved, logged;
  int64_t micro_steps = 0, begins = 0, ends = 0;
  Progress last;
  std::function<void(const Progress&)> each_micro_step = nullptr, each_step = nullptr, each_evaluation = nullptr;
  void on_begin(const Progress& now) override {
    last = now;
    ++begins;
  }
  void on_micro_step(const Progress& now) override {
    ++micro_steps;
    if (each_micro_step) each_micro_step(now);
  }
  void on_step(const Progress& now) override {
    last = now;
    losses[now.step] = now.loss;
    norms[now.step] = now.grad_norm;
    rates[now.step] = now.lr;
    if (each_step) each_step(now);
  }
  void on_log(const Progress& now) override { logged.push_back(now.step); }
  void on_evaluate(const Progress& now) override {
    evals[now.step] = *now.eval_loss;
    if (each_evaluation) each_evaluation(now);
  }
  void on_save(const Progress& now, const std::string& /*path*/) override { saved.push_back(now.step); }
  void on_end(const Progress& now, StopReason /*reason*/) override {
    last = now;
    ++ends;
  }
};

// The options of a run. The resume test runs each variant.
struct Variant {
  const char* name = "plain";
  double dropout = 0;
  bool compiled = false;  // regions and optimizer
  bool lora = false;
  int workers = 0;
  bool average = false;
  DType weights = kF32;
  bool only_norm = false;  // all is frozen but the last norm
  uint64_t model_seed = 3;
  int64_t rows = 22;
  int64_t lora_rank = 2;
  double lora_alpha = 4;
};

// Everything that a process has: model, optimizer, data, trainer.
struct SmallRun {
  explicit SmallRun(const Variant& v, TrainerOptions options) : variant(v), model(config_of(v), v.model_seed) {
    model.to(v.weights);
    if (v.lora) {
      manual_seed(5);
      nn::add_lora(model, {.rank = v.lora_rank, .alpha = v.lora_alpha, .dropout = v.dropout, .targets = {"c_attn"}});
    }
    if (v.only_norm) {
      model.requires_grad_(false);
      model.ln_f.requires_grad_();
      options.save_only_trainable = true;
    }
    if (v.compiled) compile::compile_regions(model);
    optimizer = std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    if (v.average) optimizer->track_average();
    if (v.compiled) optim::compile(*optimizer);
    train_data = std::make_unique<data::DataLoader>(
        std::make_shared<MaskedRows>(v.rows),
        data::DataLoaderOptions{.batch_size = 3, .shuffle = true, .seed = 9, .num_workers = v.workers});
    eval_data = std::make_unique<data::DataLoader>(std::make_shared<MaskedRows>(7, 2),
                                                   data::DataLoaderOptions{.batch_size = 4});
    options.count_targets = unmasked_targets;
    trainer = std::make_unique<Trainer>(
        model, *optimizer,
        [this](const data::Batch& batch) {
          if (before_loss) before_loss();
          return model.loss(batch[0], batch[1]);
        },
        *train_data, *eval_data, std::move(options));
    trainer->add_callback(notes);
  }
  static nn::GPT2Config config_of(const Variant& v) {
    return {.vocab_size = kVocab, .block_size = kLength, .n_layer = 2, .n_head = 2, .n_embd = 16, .dropout = v.dropout};
  }
  const Variant variant;
  nn::GPT2 model;
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<data::DataLoader> train_data, eval_data;
  std::unique_ptr<Trainer> trainer;
  Notes notes;
  std::function<void()> before_loss = nullptr;
};

inline void expect_same_parameters(SmallRun& a, SmallRun& b) {
  const nn::StateDict x = a.model.state_dict(), y = b.model.state_dict();
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [name, tensor] : x) EXPECT_TRUE(same_bits(tensor, y.at(name))) << name;
  const nn::StateDict s = a.optimizer->state_dict(), t = b.optimizer->state_dict();
  ASSERT_EQ(s.size(), t.size());
  for (const auto& [name, tensor] : s) EXPECT_TRUE(same_bits(tensor, t.at(name))) << name;
}

// The steps of `part` are those of `whole`, bit for bit.
inline void expect_part_of(const Notes& part, const Notes& whole) {
  const auto compare = [](const char* what, const std::map<int64_t, double>& some,
                          const std::map<int64_t, double>& all) {
    for (const auto& [step, value] : some) {
      ASSERT_TRUE(all.contains(step)) << what << " of step " << step;
      EXPECT_EQ(value, all.at(step)) << what << " of step " << step;
    }
  };
  compare("loss", part.losses, whole.losses);
  compare("norm", part.norms, whole.norms);
  compare("rate", part.rates, whole.rates);
  compare("evaluation", part.evals, whole.evals);
}

}  // namespace rondo::optim::test
