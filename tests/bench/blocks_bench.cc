// What compilation gives over our own eager execution: twelve blocks from plain ops, forward and backward.
//
//   bench_blocks [--only=NAME] [--dtypes=f32,bf16] [--sizes=8x64,2048x1024] [--rounds=9] [--seconds=0.1]
//   bench_blocks --serve     answers lines "NAME MODE DTYPE NxC SECONDS" with a line of JSON (peers/paired_blocks.py)
//
// Eager and compiled run in turns; the ratio is the median of the rounds. launches: kernels and library calls of the
// compiled forward and backward; ops: what was recorded, and again as much in backward that is not shown. `host ns` is
// the compiled step divided by its launches, at small sizes a bound of the host's time for a launch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/region/region.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bench/blocks.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;
using Clock = std::chrono::steady_clock;

struct Caller : nn::Module<Caller> {
  const bench::PlainBlock* block = nullptr;
  bench::BlockInputs in;
  std::vector<Tensor> forward(const Tensor&) { return block->forward(in); }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Contender {
 public:
  Contender(const bench::PlainBlock& block, bool compiled, DType dtype, int64_t N, int64_t C) {
    manual_seed(5);
    caller_.block = &block;
    caller_.in = block.inputs(N, C, dtype);
    if (compiled) regions_ = std::make_unique<compile::Regions>(compile::compile_module(caller_));
    for (int i = 0; i < 3; ++i) step();
  }
  void step() {
    GradMode mode(caller_.block->trains);
    ++caller_.in.step;
    const std::vector<Tensor> results = caller_(Tensor());
    if (!caller_.block->trains) return;
    results[0].backward();
    for (Tensor& t : caller_.in.t)
      if (t.requires_grad()) t.set_grad({});
  }
  // Microseconds of a step: the median over some seconds, of batches that a clock can tell.
  double measure(double seconds) {
    std::vector<double> times;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    int batch = 1;
    do {
      const auto start = Clock::now();
      for (int i = 0; i < batch; ++i) step();
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      if (us < 200 && batch < 64) batch *= 2;
      else times.push_back(us / batch);
    } while (Clock::now() < end || times.size() < 3);
    return median(times);
  }
  nlohmann::ordered_json counts() const {
    if (regions_ == nullptr) return {};
    const compile::RegionReport report = regions_->report()[0];
    const auto entries = regions_->regions()[0]->entries();
    return {{"kernels", report.kernels},
            {"library_calls", report.library_calls},
            {"ops", entries.empty() ? 0 : entries.back()->recording().nodes.size()},
            {"entries", report.entries},
            {"breaks", report.graph_breaks},
            {"failed", report.failed_compilations}};
  }

 private:
  Caller caller_;
  std::unique_ptr<compile::Regions> regions_;
};

struct Setting {
  DType dtype;
  int64_t N, C;
};
Setting setting_of(const std::string& dtype, const std::string& size) {
  const std::vector<std::string> parts = absl::StrSplit(size, 'x');
  if ((dtype != "f32" && dtype != "bf16") || parts.size() != 2) throw Error("no dtype or size: " + dtype + " " + size);
  return {dtype == "f32" ? kF32 : kBF16, bench::whole_number(parts[0]), bench::whole_number(parts[1])};
}

void serve() {
  std::map<std::string, std::unique_ptr<Contender>> known;
  std::string latest;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string name, mode, dtype, size;
    double seconds = 0;
    words >> name >> mode >> dtype >> size >> seconds;
    if (const std::string key = name + dtype + size; key != latest) known.clear(), latest = key;  // their memory
    std::unique_ptr<Contender>& contender = known[mode];
    if (contender == nullptr) {
      const Setting s = setting_of(dtype, size);
      contender = std::make_unique<Contender>(bench::find_block(name), mode == "compiled", s.dtype, s.N, s.C);
    }
    nlohmann::ordered_json answer = {{"us", contender->measure(seconds)}, {"counts", contender->counts()}};
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

void compare(const bench::PlainBlock& block, const std::string& dtype, const std::string& size, int64_t rounds,
             double seconds) {
  const Setting s = setting_of(dtype, size);
  Contender eager(block, false, s.dtype, s.N, s.C), compiled(block, true, s.dtype, s.N, s.C);
  std::vector<double> gains, eager_us, compiled_us;
  for (int64_t r = 0; r < rounds; ++r) {
    const bool first = r % 2 == 0;
    const double a = (first ? eager : compiled).measure(seconds), b = (first ? compiled : eager).measure(seconds);
    eager_us.push_back(first ? a : b);
    compiled_us.push_back(first ? b : a);
    gains.push_back(eager_us.back() / compiled_us.back());
  }
  const auto counts = compiled.counts();
  const int kernels = counts["kernels"], calls = counts["library_calls"];
  std::printf("%-16s%-6s%-11s%11.1f%13.1f%7.2f%9d%9d%6d%9.0f%s\n", block.name, dtype.c_str(), size.c_str(),
              median(eager_us), median(compiled_us), median(gains), kernels, calls, counts["ops"].get<int>(),
              1e3 * median(compiled_us) / std::max(1, kernels + calls),
              counts["breaks"] == 0 && counts["failed"] == 0 && counts["entries"] == 1 ? "" : "  not one program");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  if (options.has("serve")) return serve(), 0;
  const std::string only = options.text("only", "");
  const double seconds = std::stod(options.text("seconds", "0.1"));
  const std::vector<std::string> dtypes = absl::StrSplit(options.text("dtypes", "f32,bf16"), ','),
                                 sizes = absl::StrSplit(options.text("sizes", "8x64,2048x1024"), ',');
  std::printf("%-16s%-6s%-11s%11s%13s%7s%9s%9s%6s%9s\n", "block", "dtype", "size", "eager us", "compiled us", "gain",
              "kernels", "library", "ops", "host ns");
  for (const std::string& size : sizes)
    for (const std::string& dtype : dtypes)
      for (const bench::PlainBlock& block : bench::plain_blocks())
        if (only.empty() || only == block.name) compare(block, dtype, size, options.integer("rounds", 9), seconds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_blocks: %s\n", error.what());
  return 1;
}
