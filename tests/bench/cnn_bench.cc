// A training step (forward, loss, backward, optimizer) of the networks for images: five for segmentation and ResNet-50.
//
//   bench_cnn --model=pp_liteseg|regseg|segformer|stdc|ddrnet|resnet50 [--compile=none|regions|whole|floor]
//             [--layout=last] [--dtype=bf16] [--full] [--batch=2 --height=256 --width=512] [--steps=5] [--ema]
//             [--explain] [--memory_report] [--capture=replay] [--device=cuda]
//   bench_cnn --serve --model=... ...      answers lines "N" with the times of N steps (peers/README.md)
//   rondorun --nproc-per-node 2 --no-prefix bench_cnn --sync ...      statistics of BatchNorm over both ranks
//
// The usual sizes are for 2 cores; --full are those of the recipes. --compile=regions is compile_regions() of the
// model, which compiles its repeated blocks; whole: model and loss as one region; both with the compiled optimizer.
// floor: a "step" is the products of a step alone (step_floor.h). On a device a step's time is that of N steps by N,
// from one wait for the device to the next. first_ms: the first step, which compiles.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/groups/group_communicator.h"
#include "rondo/modules/vision/ddrnet.h"
#include "rondo/modules/vision/pp_liteseg.h"
#include "rondo/modules/vision/regseg.h"
#include "rondo/modules/vision/resnet.h"
#include "rondo/modules/vision/segformer.h"
#include "rondo/modules/vision/stdc.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/bench/step_floor.h"

namespace {

using namespace rondo;
using bench::Options;
using Clock = std::chrono::steady_clock;

constexpr int64_t kClasses = 19;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}
// Resident now, in MiB.
double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096 / (1 << 20);
}

struct Network {
  std::unique_ptr<nn::ModuleBase> module;
  std::function<Tensor(const Tensor& images, const Tensor& targets)> loss;
};
template <class M, class Config> Network network(const Config& config) {
  auto made = std::make_unique<M>(config);
  M& m = *made;
  return {std::move(made), [&m](const Tensor& images, const Tensor& targets) { return m.loss(images, targets); }};
}

struct Row {
  const char* name;
  Network (*make)();
  std::unique_ptr<optim::Optimizer> (*optimizer)(std::vector<Tensor> parameters);
  Dims images, full;  // (B, 3, H, W)
  bool pixels;        // a class for each pixel; otherwise for each image
};

std::unique_ptr<optim::Optimizer> sgd(std::vector<Tensor> parameters) {
  return std::make_unique<optim::SGD>(std::move(parameters),
                                      optim::SGDOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 5e-4});
}
std::unique_ptr<optim::Optimizer> adamw(std::vector<Tensor> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 6e-5, .weight_decay = 0.01});
}

// The networks, optimizers and their options are in peers/cnn.py, too; sizes come from here (--sizes).
const Row kRows[] = {
    {"pp_liteseg",
     [] { return network<nn::PPLiteSeg>(nn::pp_liteseg_t(kClasses)); },
     sgd,
     {2, 3, 256, 512},
     {16, 3, 512, 1024},
     true},
    {"regseg",
     [] { return network<nn::RegSeg>(nn::RegSegConfig{.num_classes = kClasses}); },
     sgd,
     {2, 3, 256, 512},
     {8, 3, 768, 768},
     true},
    {"segformer",
     [] { return network<nn::SegformerForSemanticSegmentation>(nn::SegformerConfig{.num_classes = kClasses}); },
     adamw,
     {2, 3, 256, 512},
     {8, 3, 512, 1024},
     true},
    {"stdc",
     [] { return network<nn::STDCSeg>(nn::STDCSegConfig{.num_classes = kClasses}); },
     sgd,
     {2, 3, 256, 512},
     {16, 3, 512, 1024},
     true},
    {"ddrnet",
     [] { return network<nn::DDRNet>(nn::ddrnet23_slim(kClasses)); },
     sgd,
     {2, 3, 256, 512},
     {12, 3, 1024, 1024},
     true},
    {"resnet50", [] { return network<nn::ResNet>(nn::resnet50()); }, sgd, {4, 3, 224, 224}, {64, 3, 224, 224}, false},
};
const Row& row_named(std::string_view name) {
  for (const Row& row : kRows)
    if (name == row.name) return row;
  throw Error("--model takes pp_liteseg, regseg, segformer, stdc, ddrnet or resnet50, not '" + std::string(name) + "'");
}
Dims sizes_of(const Row& row, const Options& o) {
  const Dims& usual = o.has("full") ? row.full : row.images;
  return {o.integer("batch", usual[0]), 3, o.integer("height", usual[2]), o.integer("width", usual[3])};
}

class Trainer {
 public:
  explicit Trainer(const Options& o)
      : row_(row_named(o.text("model", "resnet50"))),
        device_(parse_device(o.text("device", "cpu"))),
        mode_(o.text("compile", "regions")),
        base_mib_(resident_mib()) {
    const std::string dtype = o.text("dtype", "f32");
    if (dtype != "f32" && dtype != "bf16") throw Error("--dtype takes f32 or bf16, not '" + dtype + "'");
    if (dtype == "bf16") lower_ = kBF16;
    if (o.has("sync")) group_ = dist::ProcessGroup::connect(dist::Environment::from_process());
    manual_seed(1 + static_cast<uint64_t>(group_ ? group_->rank() : 0));
    network_ = row_.make();
    nn::ModuleBase& module = *network_.module;
    make_batch(sizes_of(row_, o), o.text("layout", "usual"));
    module.to(device_);
    if (group_) dist::convert_sync_batchnorm(module, group_);
    optimizer_ = row_.optimizer(module.parameters());
    if (group_) ddp_.emplace(module, group_);
    if (o.has("ema")) {
      std::vector<Tensor> buffers;
      for (const nn::NamedTensor& buffer : module.named_buffers()) buffers.push_back(buffer.tensor);
      optimizer_->track_average({.decay = 0.999, .buffers = buffers});
    }
    if (mode_ == "floor") floor_ = std::make_unique<bench::StepFloor>([&] { return loss(); });
    compile_model(o.text("capture", "record"));
    const auto start = Clock::now();
    step();
    synchronize(device_);
    first_ms_ = ms_since(start);
    for (int64_t i = 0; i < o.integer("warmup", 2); ++i) step();
    synchronize(device_);
  }

  std::string run(int64_t steps, const memory::Recording* recording) {
    for (std::vector<double>* times : {&step_ms_, &forward_ms_, &backward_ms_, &optimizer_ms_}) times->clear();
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    const double host_ms = median(step_ms_);
    if (device_ != kCPU && steps > 0) {
      synchronize(device_);
      step_ms_ = {ms_since(start) / static_cast<double>(steps)};
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    nlohmann::ordered_json json = {{"peer", "rondo"},
                                   {"model", row_.name},
                                   {"mode", mode_},
                                   {"step_ms_median", median(step_ms_)},
                                   {"step_ms_all", step_ms_},
                                   {"first_ms", first_ms_},
                                   {"parameters", network_.module->num_parameters()},
                                   {"loss", last_loss_.defined() ? last_loss_.item() : 0},
                                   {"base_rss_mib", base_mib_},
                                   {"peak_rss_mib", static_cast<double>(usage.ru_maxrss) / 1024}};
    if (device_ == kCPU) {
      json["forward_ms"] = median(forward_ms_);
      json["backward_ms"] = median(backward_ms_);
      json["optimizer_ms"] = median(optimizer_ms_);
    } else {
      json["host_ms"] = host_ms;
      json["peak_device_mib"] = static_cast<double>(backend_of(device_).stats(device_.index).peak_bytes) / (1 << 20);
    }
    if (regions()) add_compilation(json);
    if (floor_) {
      const double gb_per_s = bench::stream_gb_per_s();
      json["parts_ms"] = floor_->ms_of();
      json["products"] = floor_->products();
      json["distinct_products"] = floor_->distinct();
      json["rest_mb"] = static_cast<double>(floor_->rest_bytes()) / 1e6;
      json["stream_gb_per_s"] = gb_per_s;
      json["with_rest_ms"] = median(step_ms_) + static_cast<double>(floor_->rest_bytes()) / gb_per_s / 1e6;
    }
    if (recording != nullptr) std::fputs(memory::to_string(recording->report()).c_str(), stderr);
    return json.dump();
  }
  bool speaks() const { return !group_ || group_->rank() == 0; }
  std::optional<compile::Regions> regions() const { return whole_ ? std::optional(whole_->regions()) : regions_; }

 private:
  using Loss = std::function<Tensor(const Tensor&, const Tensor&)>;

  void make_batch(const Dims& sizes, const std::string& layout) {
    if (layout != "usual" && layout != "last") throw Error("--layout takes usual or last, not '" + layout + "'");
    images_ = Tensor::randn(sizes).to(device_);
    if (layout == "last") images_ = images_.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    const Dims pixels = {sizes[0], sizes[2], sizes[3]};
    targets_ = (row_.pixels ? Tensor::randint(0, kClasses, pixels) : Tensor::randint(0, 1000, {sizes[0]})).to(device_);
  }
  void compile_model(const std::string& capture) {
    compile::CompileOptions options;
    if (capture == "replay") options.capture = compile::Capture::kReplay;
    else if (capture != "record") throw Error("--capture takes record or replay");
    if (mode_ == "regions") regions_ = compile::compile_regions(*network_.module, options);
    else if (mode_ == "whole") whole_.emplace(network_.loss, options);
    else if (mode_ != "none" && mode_ != "floor") throw Error("--compile takes none, regions, whole or floor");
    if (regions()) optim::compile(*optimizer_);
  }

  Tensor loss() {
    const amp::Autocast scope(lower_);
    return whole_ ? (*whole_)(images_, targets_) : network_.loss(images_, targets_);
  }
  void step() {
    if (floor_) return step_ms_.push_back(floor_->products_ms());
    const auto start = Clock::now();
    const Tensor value = loss();
    forward_ms_.push_back(ms_since(start));
    const auto middle = Clock::now();
    value.backward();
    if (ddp_) ddp_->finish();
    backward_ms_.push_back(ms_since(middle));
    const auto late = Clock::now();
    optimizer_->step();
    optimizer_->zero_grad();
    optimizer_ms_.push_back(ms_since(late));
    step_ms_.push_back(ms_since(start));
    last_loss_ = value.detach();
  }

  void add_compilation(nlohmann::ordered_json& json) const {
    double compile_ms = optimizer_->kernels().compile_ms;
    int entries = 0, compilations = 0;
    int64_t breaks = 0, eager = 0;
    for (const compile::RegionReport& r : regions()->report()) {
      compile_ms += r.compile_ms;
      entries += r.entries, compilations += r.compilations;
      breaks += r.graph_breaks, eager += r.eager_runs;
    }
    json["compile_ms"] = compile_ms;
    json["optimizer_compile_ms"] = optimizer_->kernels().compile_ms;
    json["entries"] = entries;
    json["compilations"] = compilations;
    json["graph_breaks"] = breaks;
    json["eager_runs"] = eager;
  }

  const Row& row_;
  const Device device_;
  const std::string mode_;
  const double base_mib_;
  std::optional<DType> lower_;
  std::shared_ptr<dist::ProcessGroup> group_;
  Network network_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<dist::DistributedDataParallel> ddp_;
  std::optional<compile::Regions> regions_;
  std::optional<compile::Compiled<Loss>> whole_;
  Tensor images_, targets_;
  std::unique_ptr<bench::StepFloor> floor_;
  double first_ms_ = 0;
  std::vector<double> step_ms_, forward_ms_, backward_ms_, optimizer_ms_;
  Tensor last_loss_;
};

}  // namespace

int main(int argc, char** argv) try {
  const Options options(argc, argv);
  if (options.has("sizes")) {
    nlohmann::json sizes;
    for (const Row& row : kRows) {
      const Dims s = sizes_of(row, options);
      sizes[row.name] = {s[0], s[2], s[3]};
    }
    std::puts(sizes.dump().c_str());
    return 0;
  }
  set_num_threads(static_cast<int>(options.integer("threads", num_threads())));
  std::optional<memory::Recording> recording;
  if (options.has("memory_report")) recording.emplace();
  const memory::Recording* const recorded = recording ? &*recording : nullptr;
  std::optional<Trainer> trainer;
  const auto answer = [&](int64_t steps) {
    if (!trainer) trainer.emplace(options);
    const std::string line = trainer->run(steps, recorded);
    if (trainer->speaks()) std::cout << line << std::endl;
  };
  if (options.has("serve")) {
    for (std::string line; std::getline(std::cin, line);) answer(bench::whole_number(line));
    return 0;
  }
  answer(options.integer("steps", 5));
  if (options.has("explain") && trainer->regions())
    std::fputs(compile::to_text(compile::explain(*trainer->regions())).c_str(), stderr);
  else if (trainer->regions()) std::fputs(trainer->regions()->summary().c_str(), stderr);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_cnn: %s\n", error.what());
  return 1;
}
