// bench_host_time: what a training step on CUDA costs the host. It runs on the fake driver (tests/fake_cuda/), in which
// launches run nothing, and subtracts the time that is spent there: no GPU is used, and no figure is of one.
//
//   bench_host_time [--json] [--only=entry|steps|collectives] [--rounds=15]
//
// `entry`: entering a compiled block of 30 ops and 12 parameters, which becomes one kernel (bench_region has it on the
// CPU alone). CPU and CUDA in turns; medians of the rounds, and of their ratios. The CPU's time includes its kernel
// (some 50 ns) and both include the output's memory.
// `steps`: GPT-2 124M, by region: its embedding, one block, its last norm and loss, forward and backward; the
// optimizer.
// `collectives`: an all-reduce of a bucket over NCCL, issued and waited for, with a NCCL of one rank that does nothing
// (tests/dist/nccl_table.h).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/dist/groups/nccl_group.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/bench/region_blocks.h"
#include "rondo/tests/dist/nccl_table.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace {

using namespace rondo;
using Json = nlohmann::ordered_json;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Nanoseconds of this thread, without what it spends in the fake and in measuring that.
class HostClock {
 public:
  explicit HostClock(const test::FakeCuda& cuda) : cuda_(cuda) {
    const auto version = test::library_function<int (*)(int*)>("cuDriverGetVersion");
    std::vector<double> costs;
    for (int round = 0; round < 101; ++round) {
      constexpr int kCalls = 1000;
      const double start = now();
      for (int i = 0, ignored = 0; i < kCalls; ++i) version(&ignored);
      costs.push_back((now() - start) / kCalls);
    }
    of_a_call_ = median(costs);
  }
  double now() const {
    const double inside = cuda_->seconds_inside() * 1e9, calls = static_cast<double>(cuda_->calls_inside());
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count() -
           inside - calls * of_a_call_;
  }
  double of_a_call() const { return of_a_call_; }

 private:
  const test::FakeCuda& cuda_;
  double of_a_call_ = 0;
};

// ---- Entering a region

Json entry(const test::FakeCuda& cuda, const HostClock& clock, int rounds) {
  Json figures = Json::array();
  for (const bool taped : {false, true})
    for (const auto& [capture, name] :
         {std::pair{compile::Capture::kRecord, "record"}, std::pair{compile::Capture::kReplay, "replay"}}) {
      const GradMode mode(taped);
      struct Side {
        bench::PointwiseBlock block{64};
        std::optional<compile::Regions> regions;
        Tensor x;
      } sides[2];
      for (int i = 0; i < 2; ++i) {
        const Device device = i == 0 ? kCPU : cuda.device();
        sides[i].block.to(device);
        sides[i].regions.emplace(compile::compile_module(sides[i].block, {.capture = capture}));
        sides[i].x = Tensor::randn({1, 64}, {kF32, kCPU}).to(device);
      }
      const auto call = [&](Side& side) {
        constexpr int kCalls = 50;  // few, so that most rounds are undisturbed
        const double start = clock.now();
        for (int i = 0; i < kCalls; ++i) const Tensor y = side.block(side.x);
        return (clock.now() - start) / kCalls;
      };
      std::vector<double> times[2], ratios;
      const int64_t launches = cuda->counts().launches;
      call(sides[0]), call(sides[1]);
      if (cuda->counts().launches == launches) throw Error("nothing was launched");
      for (int round = 0; round < 20 * rounds; ++round) {
        const double cpu = call(sides[0]), gpu = call(sides[1]);
        times[0].push_back(cpu), times[1].push_back(gpu), ratios.push_back(gpu / cpu);
      }
      figures.push_back({{"capture", name},
                         {"taped", taped},
                         {"cpu_ns", median(times[0])},
                         {"cuda_ns", median(times[1])},
                         {"ratio", median(ratios)}});
    }
  return figures;
}

// ---- A training step

Json steps(const test::FakeCuda& cuda, const HostClock& clock, int rounds) {
  const nn::GPT2Config config;  // GPT-2 124M
  Json figures = Json::array();
  for (const bool compiled : {false, true}) {
    nn::GPT2 model(config, 1);
    model.to(cuda.device());
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    std::optional<compile::Regions> regions;
    if (compiled) regions.emplace(compile::compile_regions(model)), optim::compile(optimizer);
    const int64_t T = config.block_size;
    const Tensor idx = Tensor::zeros({2, T}, {kI64, kCPU}).to(cuda.device()),
                 positions = Tensor::arange(T).to(cuda.device());
    std::map<std::string, std::vector<double>> times;
    std::map<std::string, int64_t> launches;
    const auto calls = [&] { return cuda->counts().launches + cuda->counts().products; };
    double last = 0;
    int64_t last_calls = 0;
    const auto start = [&] { last_calls = calls(), last = clock.now(); };
    const auto stop = [&](const std::string& part) {
      times[part].push_back(clock.now() - last);
      launches[part] = calls() - last_calls;
      start();
    };
    for (int round = 0; round < rounds + 2; ++round) {
      if (round == 2) times.clear();  // two that compile
      const auto hooked = [&](Tensor x, const char* before) {
        x.register_hook([&, before](const Tensor& grad) { return stop(before), grad; });
        return x;
      };
      const double from = clock.now();
      start();
      Tensor x = hooked(model.drop(model.wte(idx) + model.wpe(positions)), "a block, backward");
      stop("embedding, forward");
      for (int64_t i = 0; i < model.h.size(); ++i) {
        x = hooked(model.h[i](x), i + 1 < model.h.size() ? "a block, backward" : "norm and loss, backward");
        stop("a block, forward");
      }
      const Tensor logits = ops::linear(model.ln_f(x), model.wte.weight, Tensor());
      const Tensor loss = ops::cross_entropy(logits.view({2 * T, config.vocab_size}), idx.view({2 * T}));
      stop("norm and loss, forward");
      loss.backward();
      stop("embedding, backward");
      optimizer.step({.max_norm = 1.0});
      optimizer.zero_grad();
      stop("AdamW, clipped");
      times["the step"].push_back(clock.now() - from);
      synchronize(cuda.device());
    }
    for (const auto& [part, values] : times)
      figures.push_back({{"mode", compiled ? "compiled" : "eager"},
                         {"part", part},
                         {"us", median(values) * 1e-3},
                         {"launches", launches[part]}});
  }
  return figures;
}

// ---- Collectives

Json collectives(const test::FakeCuda& cuda, const HostClock& clock, int rounds) {
  const test::OneRankNccl nccl;
  const auto group = dist::make_nccl_group(dist::make_solo_group({}),
                                           {.timeout = std::chrono::milliseconds(60'000), .device = cuda.device()},
                                           &nccl.library, "");
  const Tensor bucket = Tensor::zeros({1 << 18}, {kF32, kCPU}).to(cuda.device());
  constexpr int kCollectives = 50;  // of a step
  std::vector<double> issuing, waiting, checking;
  for (int round = 0; round < 20 * rounds; ++round) {
    std::vector<dist::Work> works;
    const std::string name = absl::StrCat("bucket 3 of step ", round);
    const double start = clock.now();
    for (int i = 0; i < kCollectives; ++i) works.push_back(group->all_reduce(bucket, dist::ReduceOp::kAverage, name));
    const double issued = clock.now();
    for (const dist::Work& work : works) work.wait();
    const double waited = clock.now();
    group->check_sequence("", name);
    const double checked = clock.now();
    issuing.push_back((issued - start) / kCollectives);
    waiting.push_back((waited - issued) / kCollectives);
    checking.push_back(checked - waited);
    works.clear();
    synchronize(cuda.device());
  }
  return {
      {"issue_us", median(issuing) * 1e-3}, {"wait_us", median(waiting) * 1e-3}, {"check_us", median(checking) * 1e-3}};
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  set_num_threads(1);
  const int rounds = static_cast<int>(options.integer("rounds", 15));
  const std::string only = options.text("only", "");
  test::FakeCuda cuda({.bytes = size_t{64} << 30, .early = 0, .executes = false});
  const HostClock clock(cuda);
  Json figures;
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("entry")) figures["entry"] = entry(cuda, clock, rounds);
  if (wanted("steps")) figures["steps"] = steps(cuda, clock, rounds);
  if (wanted("collectives")) figures["collectives"] = collectives(cuda, clock, rounds);
  if (options.has("json")) return std::puts(figures.dump(1).c_str()), 0;
  std::printf(
      "Host time on the fake driver; its own time and %.0f ns a call for measuring that are subtracted. No GPU.\n",
      clock.of_a_call());
  if (figures.contains("entry")) {
    std::printf("%-10s%8s%10s%10s%10s\n", "capture", "taped", "CPU ns", "CUDA ns", "CUDA/CPU");
    for (const Json& f : figures["entry"])
      std::printf("%-10s%8s%10.0f%10.0f%10.2f\n", f["capture"].get<std::string>().c_str(),
                  f["taped"].get<bool>() ? "yes" : "no", f["cpu_ns"].get<double>(), f["cuda_ns"].get<double>(),
                  f["ratio"].get<double>());
  }
  if (figures.contains("steps")) {
    std::printf("%-10s%-26s%12s%10s\n", "mode", "part", "us", "launches");
    for (const Json& f : figures["steps"])
      std::printf("%-10s%-26s%12.1f%10lld\n", f["mode"].get<std::string>().c_str(),
                  f["part"].get<std::string>().c_str(), f["us"].get<double>(),
                  static_cast<long long>(f["launches"].get<int64_t>()));
  }
  if (figures.contains("collectives")) {
    const Json& f = figures["collectives"];
    std::printf("an all-reduce: issued in %.2f us, waited for in %.2f us; the check of 50, of one rank: %.1f us\n",
                f["issue_us"].get<double>(), f["wait_us"].get<double>(), f["check_us"].get<double>());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_host_time: %s\n", error.what());
  return 1;
}
