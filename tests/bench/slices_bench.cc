// A loop over the parts of one tensor, forward and backward: x (16, T, 512) f32 is cut along T, each part goes through
// a function, and the results add up.
//
//   bench_slices [--parts=unbind|split|select|slice] [--function=tanh|scale|square] [--T=512] [--mode=eager|compiled]
//   bench_slices --rounds=5 --against=compiled     eager and compiled in turns, and the ratio
//   bench_slices --compile                         the compile time at T, 2 T and 4 T, cold
//   bench_slices --serve ...                       answers lines "N" with the times of N steps (peers/README.md)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;

struct Loop : nn::Module<Loop> {
  Loop(std::string parts, std::string function) : parts(std::move(parts)), function(std::move(function)) {}
  std::string parts, function;

  std::vector<Tensor> cut(const Tensor& x) const {
    if (parts == "unbind") return ops::unbind(x, 1);
    if (parts == "split") return ops::split(x, 1, 1);
    std::vector<Tensor> all;
    for (int64_t t = 0; t < x.size(1); ++t) all.push_back(parts == "select" ? x.select(1, t) : x.slice(1, {t, t + 1}));
    return all;
  }
  Tensor forward(const Tensor& x) const {
    Tensor sum;
    for (const Tensor& part : cut(x)) {
      const Tensor y = function == "tanh" ? ops::tanh(part) : function == "scale" ? part * 0.5 : part * part;
      sum = sum.defined() ? sum + y : y;
    }
    return ops::sum(sum);
  }
};

double ms_of(auto step) {
  const auto start = std::chrono::steady_clock::now();
  step();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Contender {
  Contender(const bench::Options& options, const std::string& mode, int64_t T)
      : loop(options.text("parts", "split"), options.text("function", "tanh")),
        x(Tensor::randn({16, T, 512}).requires_grad_()) {
    if (mode == "compiled") regions = std::make_unique<compile::Regions>(compile::compile_module(loop));
    first_ms = step();
    step();
  }
  double step() {
    return ms_of([&] {
      x.set_grad({});
      loop(x).backward();
    });
  }
  std::vector<double> steps(int64_t n) {
    std::vector<double> times;
    for (int64_t i = 0; i < n; ++i) times.push_back(step());
    return times;
  }
  Loop loop;
  Tensor x;
  std::unique_ptr<compile::Regions> regions;
  double first_ms = 0;
};

void serve(const bench::Options& options, const std::string& mode, int64_t T) {
  std::unique_ptr<Contender> contender;
  for (std::string line; std::getline(std::cin, line);) {
    if (contender == nullptr) contender = std::make_unique<Contender>(options, mode, T);
    const std::vector<double> times = contender->steps(std::atoi(line.c_str()));
    const nlohmann::json answer = {{"peer", "rondo"},
                                   {"mode", mode},
                                   {"step_ms_all", times},
                                   {"step_ms_median", median(times)},
                                   {"compile_ms", contender->regions ? contender->regions->report()[0].compile_ms : 0}};
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  const int64_t T = options.integer("T", 512), rounds = options.integer("rounds", 5);
  const std::string mode = options.text("mode", "eager"), against = options.text("against", "");
  if (options.has("serve")) return serve(options, mode, T), 0;
  if (options.has("compile")) {
    compile::jit_toolchain();
    for (const int64_t n : {T, 2 * T, 4 * T}) {
      compile::forget_unused_kernels();
      const Contender contender(options, "compiled", n);
      const compile::RegionReport report = contender.regions->report()[0];
      std::printf("T %d: compiled in %.0f ms, %.3f ms a part; %d kernels, %d library calls; first step %.0f ms\n",
                  static_cast<int>(n), report.compile_ms, report.compile_ms / static_cast<double>(n), report.kernels,
                  report.library_calls, contender.first_ms);
    }
    return 0;
  }
  Contender first(options, mode, T);
  if (against.empty()) return std::printf("%s: %.2f ms a step\n", mode.c_str(), median(first.steps(rounds))), 0;
  Contender second(options, against, T);
  std::vector<double> a, b, ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    a.push_back(median(first.steps(3)));
    b.push_back(median(second.steps(3)));
    ratios.push_back(b.back() / a.back());
  }
  std::printf("%s %.2f ms, %s %.2f ms: %.3f times as long, the median of %d rounds\n", mode.c_str(), median(a),
              against.c_str(), median(b), median(ratios), static_cast<int>(rounds));
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_slices: %s\n", e.what());
  return 1;
}
