// bench_region: what it costs the host to enter a compiled block, in nanoseconds: record, find the entry, prepare the
// run, hand out results.
//
//   bench_region [--json] [--only=pointwise|transformer|floats] [--seconds=0.2]
//
// Two blocks of 12 parameters. `pointwise` is the figure: 30 elementwise ops on (1, 64), which become one kernel of
// some 50 ns and one small output; both are in call_ns. `transformer` is a GPT-2 block on (1, 4, 16): six products and
// an attention run in it, whose time call_ns includes, so it shows changes only. `taped` is with gradients: saved
// values are allocated, and the node on the tape is made and dropped. depth: so many blocks share the region and are
// called in turn. record and pack are parts of a recording call, measured alone.
//
// `floats`: 1,000 calls of `pointwise` whose factor changes at each (6 of its 12 floats), in turn with 1,000 whose
// factor stays, in 41 rounds. `more ns` is the median over the rounds of how much longer a call with a changing factor
// takes. `step` is the call, its backward and zero_grad().
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/region/region.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/bench/region_blocks.h"

namespace {

using namespace rondo;
using bench::PointwiseBlock;
using bench::Stack;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_per_figure = 0.2;

// Mean time of one call in the fastest of many batches: what the machine does when nobody disturbs it.
double nanoseconds(int calls, const std::function<void()>& f) {
  f();
  const int repeats = std::max(1, 20 / calls);
  double best = 1e30;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds_per_figure);
  do {
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) f();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count() / (repeats * calls));
  } while (Clock::now() < end);
  return best;
}

template <class Block, class... Args>
void measure(Json& figures, const char* name, const Tensor& x, const Args&... args) {
  for (const bool taped : {false, true}) {
    GradMode mode(taped);
    // The parts, without a region.
    Block block(args...);
    size_t ops = 0;
    const double record = nanoseconds(1, [&] {
      compile::Trace trace;
      RecorderScope scope(&trace);
      const Tensor y = block(x);
      ops = trace.graph.nodes.size();
    });
    compile::Trace trace;
    {
      RecorderScope scope(&trace);
      const Tensor y = block(x);
    }
    const double pack = nanoseconds(1, [&] { compile::pack(trace.graph); });
    for (const auto& [capture, capture_name] :
         {std::pair{compile::Capture::kRecord, "record"}, std::pair{compile::Capture::kReplay, "replay"}}) {
      for (const int depth : {1, 96}) {
        Stack<Block> stack(depth, args...);
        const compile::Regions regions = compile::compile_regions(stack, {.capture = capture});
        const double call = nanoseconds(depth, [&] {
          for (Block& b : stack.h) const Tensor y = b(x);
        });
        figures.push_back({{"block", name},
                           {"ops", ops},
                           {"parameters", block.parameters().size()},
                           {"capture", capture_name},
                           {"taped", taped},
                           {"depth", depth},
                           {"call_ns", call},
                           {"record_ns", record},
                           {"pack_ns", pack},
                           {"compilations", regions.report()[0].compilations}});
      }
    }
  }
}

// A factor that changes at each call beside one that stays.
void measure_floats(Json& figures) {
  constexpr int kRounds = 41, kCalls = 1000;
  for (const std::string what : {"call", "taped call", "step"}) {
    GradMode mode(what != "call");
    Stack<PointwiseBlock> stack(1, int64_t{64});
    const compile::Regions regions = compile::compile_regions(stack);
    PointwiseBlock& block = stack.h[0];
    const Tensor x = Tensor::randn({1, 64});
    int64_t step = 0;
    const auto batch = [&](bool changes) {
      const auto start = Clock::now();
      for (int i = 0; i < kCalls; ++i) {
        if (changes) block.factor = 3e-4 * static_cast<double>(++step);
        const Tensor y = block(x);
        if (what != "step") continue;
        ops::sum(y).backward();
        block.zero_grad();
      }
      return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls;
    };
    const auto median = [](std::vector<double> list) {
      std::nth_element(list.begin(), list.begin() + list.size() / 2, list.end());
      return list[list.size() / 2];
    };
    batch(false), batch(true);
    std::vector<double> stays, more;
    const int64_t before = regions.report()[0].float_changes;
    for (int round = 0; round < kRounds; ++round) {
      const bool first = round % 2 == 0;
      const double a = batch(first), b = batch(!first);
      stays.push_back(first ? b : a);
      more.push_back(first ? a - b : b - a);
    }
    const compile::RegionReport report = regions.report()[0];
    figures.push_back({{"what", what},
                       {"constant_ns", median(stays)},
                       {"more_ns", median(more)},
                       {"changes", report.float_changes - before},
                       {"entries", report.entries},
                       {"compilations", report.compilations}});
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  set_num_threads(1);
  const std::string only = options.text("only", "");
  seconds_per_figure = std::stod(options.text("seconds", "0.2"));
  const bool json = options.has("json");
  if (only == "floats") {
    Json floats = Json::array();
    measure_floats(floats);
    if (json) return std::puts(floats.dump(1).c_str()), 0;
    std::printf("%-12s%13s%9s%9s%9s%14s\n", "what", "constant ns", "more ns", "changes", "entries", "compilations");
    for (const Json& f : floats)
      std::printf("%-12s%13.0f%9.0f%9d%9d%14d\n", f["what"].get<std::string>().c_str(), f["constant_ns"].get<double>(),
                  f["more_ns"].get<double>(), f["changes"].get<int>(), f["entries"].get<int>(),
                  f["compilations"].get<int>());
    return 0;
  }
  Json figures = Json::array();
  if (only != "transformer") measure<PointwiseBlock>(figures, "pointwise", Tensor::randn({1, 64}), int64_t{64});
  if (only != "pointwise")
    measure<nn::TransformerBlock>(figures, "transformer", Tensor::randn({1, 4, 16}), int64_t{16}, int64_t{2});
  if (json) return std::puts(figures.dump(1).c_str()), 0;
  std::printf("%-12s%5s%12s%11s%7s%7s%10s%11s%9s\n", "block", "ops", "parameters", "capture", "taped", "depth",
              "call ns", "record ns", "pack ns");
  for (const Json& f : figures)
    std::printf("%-12s%5d%12d%11s%7s%7d%10.0f%11.0f%9.0f\n", f["block"].get<std::string>().c_str(), f["ops"].get<int>(),
                f["parameters"].get<int>(), f["capture"].get<std::string>().c_str(),
                f["taped"].get<bool>() ? "yes" : "no", f["depth"].get<int>(), f["call_ns"].get<double>(),
                f["record_ns"].get<double>(), f["pack_ns"].get<double>());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_region: %s\n", error.what());
  return 1;
}
