// bench_gpt: one GPT-2 training step (zero_grad, forward, cross-entropy, backward, clip, AdamW), timed by phase, beside
// the matmul floor: the same products at the best rate that any layout reaches (product_ways.h).
//
//   bench_gpt --n_layer=6 --n_head=6 --n_embd=384 --block_size=256 --batch_size=8 --compile=regions
//
// --compile=none, regions or whole; --mode=default, reduce-overhead or max-autotune; --capture=record or replay;
// --accumulate=N: a step is N backward passes over the same batch and one update. --grad_clip=0 leaves out clipping;
// then --update_at_seams makes the updates during backward, whose time they are part of. --inference: a step is the
// forward pass alone, without gradients.
// --dropout=P: of the embeddings, the attention weights, and the results of attention and MLP.
// --whole_logits=N: the loss computes more logits than these in chunks. --recompute=auto, none or full: what a backward
// computes again; full with --compile=none checkpoints each block. --memory_report: where the memory went, also in the
// JSON. --device=cuda: there is no floor, a step's time is that of N steps from one wait for the device to the next,
// and host_ms is what the host needs of it; --tf32 lets products of f32 round their operands. --zipf: tokens are as
// frequent as in texts (tests/zipf_tokens.h), not equally likely. With --serve it speaks the protocol of
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

#include "rondo/compile/compile.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/device.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/matmul_precision.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/bench/product_ways.h"
#include "rondo/tests/zipf_tokens.h"

namespace {

using namespace rondo;
using bench::Options;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Milliseconds of y = x w^T, dx = g w and dw = g^T x with x (rows, in) and w (out, in), at best.
double linear_floor_ms(int64_t rows, int64_t in, int64_t out, DType dtype) {
  double total = 0;
  for (const bench::ProductSize& size : {bench::ProductSize{rows, in, out}, {rows, out, in}, {out, rows, in}})
    total += bench::product_floor_ms(size, dtype);
  return total;
}

// Activation checkpointing of a block, by hand.
struct CheckpointHook : nn::CallHook {
  explicit CheckpointHook(nn::TransformerBlock& block) : block(block) {}
  nn::TransformerBlock& block;
  void around(const nn::ModuleCall& call, absl::FunctionRef<void()>) override {
    const auto forward = [this](std::span<const Tensor> x) { return std::vector<Tensor>{block.forward(x[0])}; };
    *call.result = autograd::checkpoint(forward, {call.inputs[0], 1})[0];
  }
};

class Trainer {
 public:
  explicit Trainer(const Options& o)
      : config_{.vocab_size = o.integer("vocab_size", 65),
                .block_size = o.integer("block_size", 64),
                .n_layer = o.integer("n_layer", 4),
                .n_head = o.integer("n_head", 4),
                .n_embd = o.integer("n_embd", 128),
                .dropout = std::stod(o.text("dropout", "0")),
                .whole_logits = o.integer("whole_logits", nn::kWholeLogits)},
        device_(parse_device(o.text("device", "cpu"))),
        batch_(o.integer("batch_size", 12)),
        model_(config_, 1337),
        autocast_(o.text("dtype", "f32") == "bf16"),
        optimizer_(model_.parameters(), {.lr = 1e-3, .betas = {0.9, 0.99}, .weight_decay = 0.1}),
        mode_(o.text("compile", "none")),
        inference_(o.integer("inference", 0) != 0),
        accumulate_(o.integer("accumulate", 1)) {
    const double clip = std::stod(o.text("grad_clip", "1"));
    if (clip > 0) step_options_.max_norm = clip;
    manual_seed(1);
    const int64_t length = config_.block_size + 1;
    const Tensor tokens = o.integer("zipf", 0) != 0
                              ? Tensor::from(test::zipf_tokens(batch_ * length, config_.vocab_size, 1),
                                             {batch_, length})
                              : Tensor::randint(0, config_.vocab_size, {batch_, length});
    x_ = tokens.slice(1, {0, -1}).contiguous().to(device_);
    y_ = tokens.slice(1, {1}).contiguous().to(device_);
    model_.to(device_);
    if (inference_) model_.eval();
    const std::string recompute = o.text("recompute", mode_ == "none" ? "none" : "auto");
    compile::CompileOptions options = compile_options(o.text("mode", "default"), recompute);
    if (const std::string capture = o.text("capture", "record"); capture == "replay")
      options.capture = compile::Capture::kReplay;
    else if (capture != "record") throw Error("--capture takes record or replay");
    if (mode_ == "regions") regions_ = compile::compile_regions(model_, options);
    else if (mode_ == "whole") regions_ = compile::compile_module(model_, options);
    else if (mode_ != "none") throw Error("--compile takes none, regions or whole");
    if (mode_ == "none" && recompute == "full")
      for (nn::TransformerBlock& block : model_.h) block.call_hook = std::make_shared<CheckpointHook>(block);
    if (mode_ != "none") optim::compile(optimizer_);
    if (o.integer("update_at_seams", 0) != 0)
      updates_.emplace(model_, optimizer_, optim::UpdateAtSeamsOptions{.step = step_options_});
    for (int64_t i = 0; i < o.integer("warmup", 3); ++i) step();
    synchronize(device_);
  }

  static compile::CompileOptions compile_options(const std::string& mode, const std::string& recompute) {
    compile::CompileOptions options;
    const auto* const named = std::find_if(std::begin(compile::kModes), std::end(compile::kModes),
                                           [&](compile::Mode m) { return compile::name_of(m) == mode; });
    if (named == std::end(compile::kModes)) throw Error("--mode takes default, reduce-overhead or max-autotune");
    options.mode = *named;
    if (recompute == "none") options.recompute = compile::Recompute::kNone;
    else if (recompute == "full") options.recompute = compile::Recompute::kFull;
    else if (recompute != "auto") throw Error("--recompute takes auto, none or full");
    return options;
  }

  void step() {
    if (inference_) return infer();
    const auto start = Clock::now();
    optimizer_.zero_grad();
    for (int64_t i = 1; i < accumulate_; ++i) {
      std::optional<optim::UpdateAtSeams::NoUpdate> held;
      if (updates_) held.emplace(*updates_);
      std::optional<amp::Autocast> lower;
      if (autocast_) lower.emplace(kBF16);
      model_.loss(x_, y_).backward();
    }
    Tensor loss;
    {
      std::optional<amp::Autocast> lower;
      if (autocast_) lower.emplace(kBF16);
      loss = model_.loss(x_, y_);
    }
    forward_ms_.push_back(ms_since(start));
    const auto middle = Clock::now();
    loss.backward();
    backward_ms_.push_back(ms_since(middle));
    const auto late = Clock::now();
    if (updates_) updates_->finish();
    else optimizer_.step(step_options_);
    optimizer_ms_.push_back(ms_since(late));
    step_ms_.push_back(ms_since(start));
    last_loss_ = loss.detach();
  }

  void infer() {
    const NoGrad off;
    const auto start = Clock::now();
    std::optional<amp::Autocast> lower;
    if (autocast_) lower.emplace(kBF16);
    const Tensor logits = model_(x_);
    forward_ms_.push_back(ms_since(start));
    step_ms_.push_back(forward_ms_.back());
  }

  // The products of one step; those of attention count as part of the model's own time.
  double floor_ms() {
    const int64_t rows = batch_ * config_.block_size, c = config_.n_embd;
    const DType dtype = autocast_ ? kBF16 : kF32;
    const double layer = linear_floor_ms(rows, c, 3 * c, dtype) + linear_floor_ms(rows, c, c, dtype) +
                         linear_floor_ms(rows, c, 4 * c, dtype) + linear_floor_ms(rows, 4 * c, c, dtype);
    return static_cast<double>(config_.n_layer) * layer + linear_floor_ms(rows, c, config_.vocab_size, dtype);
  }

  std::string run(int64_t steps, bool with_floor, const memory::Recording* recording) {
    step_ms_.clear();
    forward_ms_.clear();
    backward_ms_.clear();
    optimizer_ms_.clear();
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    const double host_ms = median(step_ms_);
    if (device_ != kCPU && steps > 0) {
      synchronize(device_);
      step_ms_ = {ms_since(start) / static_cast<double>(steps)};
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double step = median(step_ms_);
    nlohmann::ordered_json json = {
        {"peer", "rondo"},
        {"mode", mode_},
        {"step_ms_median", step},
        {"step_ms_all", step_ms_},
        {"tokens_per_s", step > 0 ? 1e3 * static_cast<double>(batch_ * config_.block_size) / step : 0},
        {"loss", last_loss_.defined() ? last_loss_.item() : 0},
        {"peak_rss_mib", static_cast<double>(usage.ru_maxrss) / 1024}};
    if (device_ == kCPU) {
      json["forward_ms"] = median(forward_ms_);
      json["backward_ms"] = median(backward_ms_);
      json["optimizer_ms"] = median(optimizer_ms_);
    } else {
      json["device"] = to_string(device_);
      json["host_ms"] = host_ms;
      json["peak_device_mib"] = static_cast<double>(backend_of(device_).stats(device_.index).peak_bytes) / (1 << 20);
      const cuda::DnnReport plans = cuda::dnn_report();  // RONDO_CUDA_ATTENTION=cudnn
      json["cudnn_runs"] = plans.runs;
      json["runs_without_plan"] = plans.runs_otherwise;
    }
    if (recording != nullptr) {
      const memory::Report r = recording->report();
      json["memory"] = {{"parameters", r.parameters},
                        {"gradients", r.gradients},
                        {"states", r.states},
                        {"activations", r.activations},
                        {"most_activations", r.most_activations},
                        {"workspace", r.workspace},
                        {"cached", r.cached},
                        {"outside", r.outside},
                        {"total", r.total()},
                        {"process_peak", r.process_peak},
                        {"cause", r.cause}};
      std::fputs(memory::to_string(r).c_str(), stderr);
    }
    if (regions_) json["compile_ms"] = regions_->report()[0].compile_ms;
    if (with_floor && steps > 0 && !inference_ && device_ == kCPU) {
      const double floor = floor_ms();
      json["floor_ms"] = floor;
      json["floor_share"] = floor / step;
    }
    return json.dump();
  }

  std::string summary() const { return regions_ ? regions_->summary() : "eager"; }

 private:
  nn::GPT2Config config_;
  Device device_;
  int64_t batch_;
  nn::GPT2 model_;
  bool autocast_;
  optim::AdamW optimizer_;
  std::string mode_;
  bool inference_;
  int64_t accumulate_ = 1;
  optim::StepOptions step_options_;
  std::optional<optim::UpdateAtSeams> updates_;
  Tensor x_, y_;
  std::optional<compile::Regions> regions_;
  std::vector<double> step_ms_, forward_ms_, backward_ms_, optimizer_ms_;
  Tensor last_loss_;
};

}  // namespace

int main(int argc, char** argv) try {
  const Options options(argc, argv);
  set_num_threads(static_cast<int>(options.integer("threads", num_threads())));
  if (options.integer("tf32", 0) != 0) set_float32_matmul_precision(MatmulPrecision::kHigh);
  std::optional<memory::Recording> recording;
  if (options.integer("memory_report", 0)) recording.emplace();
  const memory::Recording* const recorded = recording ? &*recording : nullptr;
  if (options.integer("serve", 0)) {
    std::optional<Trainer> trainer;
    for (int64_t steps = 0; std::cin >> steps;) {
      if (!trainer) trainer.emplace(options);
      std::cout << trainer->run(steps, true, recorded) << std::endl;
    }
    return 0;
  }
  Trainer trainer(options);
  std::fprintf(stderr, "%s\n", trainer.summary().c_str());
  std::puts(trainer.run(options.integer("steps", 10), true, recorded).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_gpt: %s\n", error.what());
  return 1;
}
