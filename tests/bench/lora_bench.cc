// bench_lora: a fine-tuning step of GPT-2 (zero_grad, forward, cross-entropy, backward, AdamW), with LoRA or of all
// parameters. By default 124M parameters, B = 1, T = 512, rank 8 on c_attn, random weights, regions, no recompute.
//
//   bench_lora --rank=8       LoRA; --rank=0: full fine-tuning
//
//   bench_lora --study=FIRST,SECOND    pretrains a small model on the bytes of one text (the first 90%), fine-tunes it
//   on
//                                      another with all parameters and with LoRA, each at the best of its rates, and
//                                      prints the held-out losses (of the last 10%)
//
// --targets=c_attn,c_proj; --n_layer, --n_head, --n_embd, --vocab_size, --block_size, --batch_size, --threads,
// --warmup;
// --compile=regions or none; --memory_report: where the memory went. With --serve it speaks the protocol of
// tests/bench/peers: each line N on stdin runs N steps and prints one JSON line.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_split.h"
#include "rondo/compile/compile.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/schedule.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;
using bench::Options;
using Clock = std::chrono::steady_clock;

class Trainer {
 public:
  explicit Trainer(const Options& o)
      : model_({.vocab_size = o.integer("vocab_size", 50257),
                .block_size = o.integer("block_size", 512),
                .n_layer = o.integer("n_layer", 12),
                .n_head = o.integer("n_head", 12),
                .n_embd = o.integer("n_embd", 768)},
               1337),
        trainable_(model_.num_parameters()) {
    manual_seed(1);
    if (const int64_t rank = o.integer("rank", 8); rank > 0)
      trainable_ = nn::add_lora(model_, {.rank = rank,
                                         .alpha = 2.0 * static_cast<double>(rank),
                                         .targets = absl::StrSplit(o.text("targets", "c_attn"), ',')})
                       .trainable;
    optimizer_ = std::make_unique<optim::AdamW>(model_.parameters(), optim::AdamWOptions{.lr = 1e-4});
    const Tensor tokens = Tensor::randint(0, model_.config.vocab_size,
                                          {o.integer("batch_size", 1), model_.config.block_size + 1});
    x_ = tokens.slice(1, {0, -1}).contiguous();
    y_ = tokens.slice(1, {1}).contiguous();
    if (o.text("compile", "regions") == "regions") {
      regions_ = compile::compile_regions(model_, {.recompute = compile::Recompute::kNone});
      optim::compile(*optimizer_);
    }
    memory::trim();  // what the random start has left
    for (int64_t i = 0; i < o.integer("warmup", 3); ++i) step();
  }

  double step() {
    const auto start = Clock::now();
    optimizer_->zero_grad();
    const Tensor loss = model_.loss(x_, y_);
    loss.backward();
    optimizer_->step();
    loss_ = loss.item();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

  std::string run(int64_t steps, const memory::Recording* recording) {
    std::vector<double> times;
    for (int64_t i = 0; i < steps; ++i) times.push_back(step());
    std::vector<double> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const int64_t total = model_.num_parameters();
    nlohmann::ordered_json json = {{"peer", "rondo"},
                                   {"step_ms_median", sorted.empty() ? 0 : sorted[sorted.size() / 2]},
                                   {"step_ms_all", times},
                                   {"loss", loss_},
                                   {"trainable", trainable_},
                                   {"parameters", total},
                                   {"peak_rss_mib", static_cast<double>(usage.ru_maxrss) / 1024}};
    if (recording != nullptr) std::fputs(memory::to_string(recording->report()).c_str(), stderr);
    return json.dump();
  }
  std::string summary() const { return regions_ ? regions_->summary() : "eager"; }

 private:
  nn::GPT2 model_;
  int64_t trainable_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::optional<compile::Regions> regions_;
  Tensor x_, y_;
  double loss_ = 0;
};

// ---- The study

std::vector<int64_t> bytes_of(const std::string& path) {
  const std::shared_ptr<const io::MappedFile> file = io::MappedFile::open(path);
  std::vector<int64_t> tokens;
  for (const char c : file->text()) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

struct Text {
  std::vector<int64_t> train, held_out;
  explicit Text(const std::string& path) {
    const std::vector<int64_t> all = bytes_of(path);
    const auto cut = all.begin() + static_cast<std::ptrdiff_t>(all.size() * 9 / 10);
    train.assign(all.begin(), cut);
    held_out.assign(cut, all.end());
  }
};

class Study {
 public:
  static constexpr nn::GPT2Config kConfig = {
      .vocab_size = 256, .block_size = 64, .n_layer = 4, .n_head = 4, .n_embd = 128};
  static constexpr int64_t kBatch = 16;

  explicit Study(const Options& o) : steps_(o.integer("steps", 500)), rank_(o.integer("rank", 32)) {
    const std::vector<std::string> paths = absl::StrSplit(o.text("study", ""), ',');
    if (paths.size() != 2) throw Error("--study takes two texts: FIRST,SECOND");
    const Text first(paths[0]), second(paths[1]);
    nn::GPT2 model(kConfig, 1337);
    train(model, first, o.integer("pretrain", 2000), 1e-3);
    base_ = model.state_dict();
    std::printf("pretrained: held-out loss %.4f on the first text, %.4f on the second\n", held_out(model, first),
                held_out(model, second));
    const double full = best(second, false, {3e-4, 1e-3, 3e-3}), lora = best(second, true, {2e-3, 5e-3, 1e-2});
    std::printf("after %lld steps on the second: all parameters %.4f, LoRA %.4f: %+.1f%% (goal: within 5%%)\n",
                static_cast<long long>(steps_), full, lora, 100 * (lora / full - 1));
  }

 private:
  static Tensor batch(const std::vector<int64_t>& text, Generator& generator) {
    const int64_t T = kConfig.block_size;
    const std::vector<int64_t> starts =
        Tensor::randint(0, static_cast<int64_t>(text.size()) - T, {kBatch}, {kI64}, &generator).to_vector<int64_t>();
    std::vector<int64_t> tokens;
    for (const int64_t start : starts) tokens.insert(tokens.end(), text.begin() + start, text.begin() + start + T + 1);
    return Tensor::from(tokens, {kBatch, T + 1});
  }
  static Tensor loss(nn::GPT2& model, const Tensor& tokens) {
    return model.loss(tokens.slice(1, {0, -1}).contiguous(), tokens.slice(1, {1}).contiguous());
  }
  static void train(nn::GPT2& model, const Text& text, int64_t steps, double lr) {
    compile::compile_regions(model);
    optim::AdamW optimizer(model.parameters(), {.lr = lr, .betas = {0.9, 0.99}, .weight_decay = 0.01});
    optim::compile(optimizer);
    const optim::CosineWithWarmup schedule = {
        .lr = lr, .min_lr = lr / 10, .warmup_steps = steps / 20, .decay_steps = steps};
    Generator generator(7);
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.set_lr(schedule(step));
      optimizer.zero_grad();
      loss(model, batch(text.train, generator)).backward();
      optimizer.step({.max_norm = 1.0});
    }
  }
  static double held_out(nn::GPT2& model, const Text& text) {
    const NoGrad off;
    Generator generator(11);
    double total = 0;
    constexpr int kBatches = 60;
    for (int i = 0; i < kBatches; ++i) total += loss(model, batch(text.held_out, generator)).item();
    return total / kBatches;
  }
  double best(const Text& text, bool lora, std::initializer_list<double> rates) const {
    double lowest = std::numeric_limits<double>::infinity();
    for (const double lr : rates) {
      nn::GPT2 model(kConfig, 1);
      model.load_state_dict(base_);
      manual_seed(3);
      int64_t trainable = model.num_parameters();
      if (lora)
        trainable = nn::add_lora(model,
                                 {.rank = rank_, .alpha = 2.0 * static_cast<double>(rank_), .targets = {"all-linear"}})
                        .trainable;
      train(model, text, steps_, lr);
      const double reached = held_out(model, text);
      std::printf("  %s, %lld trained, lr %g: %.4f\n", lora ? "LoRA" : "all", static_cast<long long>(trainable), lr,
                  reached);
      std::fflush(stdout);
      lowest = std::min(lowest, reached);
    }
    return lowest;
  }

  int64_t steps_, rank_;
  nn::StateDict base_;
};

}  // namespace

int main(int argc, char** argv) try {
  const Options options(argc, argv);
  set_num_threads(static_cast<int>(options.integer("threads", num_threads())));
  std::optional<memory::Recording> recording;
  if (options.integer("memory_report", 0)) recording.emplace();
  const memory::Recording* const recorded = recording ? &*recording : nullptr;
  if (options.has("study")) {
    const Study study(options);
    return 0;
  }
  if (options.integer("serve", 0)) {
    std::optional<Trainer> trainer;
    for (int64_t steps = 0; std::cin >> steps;) {
      if (!trainer) trainer.emplace(options);
      std::cout << trainer->run(steps, recorded) << std::endl;
    }
    return 0;
  }
  Trainer trainer(options);
  std::fprintf(stderr, "%s\n", trainer.summary().c_str());
  std::puts(trainer.run(options.integer("steps", 10), recorded).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_lora: %s\n", error.what());
  return 1;
}
