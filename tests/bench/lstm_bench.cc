// A language model of plain recurrent cells: forward and backward of two LSTM layers, written as users write them, a
// C++ loop over time.
//
//   bench_lstm [--mode=eager|layer|cell] [--T=128] [--B=32] [--width=256] [--layers=2] [--rounds=5]
//     eager: nothing compiled; layer: each layer, loop and all, is a region; cell: the cell is a region
//   bench_lstm --compile            the compile time at T, 2 T and 4 T, cold
//   bench_lstm --serve ...          answers lines "N" with the times of N steps (peers/README.md)
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
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;

struct Cell : nn::Module<Cell> {
  explicit Cell(int64_t C) : C(C) {}
  int64_t C;
  nn::Linear x_gates = child("x_gates", C, 4 * C);
  nn::Linear h_gates = child("h_gates", C, 4 * C);

  // x, h, c: (B, C). Returns h and c of the next step, side by side: (2, B, C) would cost a copy, so two tensors.
  std::vector<Tensor> forward(const Tensor& x, const Tensor& h, const Tensor& c) {
    const std::vector<Tensor> gates = ops::chunk(x_gates(x) + h_gates(h), 4, 1);
    const Tensor next = ops::sigmoid(gates[1]) * c + ops::sigmoid(gates[0]) * ops::tanh(gates[2]);
    return {ops::sigmoid(gates[3]) * ops::tanh(next), next};
  }
};

struct Layer : nn::Module<Layer> {
  explicit Layer(int64_t C) : C(C) {}
  int64_t C;
  Cell cell = child("cell", C);

  Tensor forward(const Tensor& x) {  // (B, T, C)
    Tensor h = Tensor::zeros({x.size(0), x.size(2)}), c = h;
    std::vector<Tensor> all;
    for (int64_t t = 0; t < x.size(1); ++t) {
      std::vector<Tensor> next = cell(x.select(1, t), h, c);
      h = next[0];
      c = next[1];
      all.push_back(h);
    }
    return ops::stack(all, 1);
  }
};

struct LanguageModel : nn::Module<LanguageModel> {
  LanguageModel(int64_t vocabulary, int64_t C, int64_t depth) : vocabulary(vocabulary), C(C), depth(depth) {}
  int64_t vocabulary, C, depth;
  nn::Embedding embedding = child("embedding", vocabulary, C);
  nn::ModuleList<Layer> layers = child("layers", depth, C);
  nn::Linear head = child("head", C, vocabulary);

  Tensor forward(const Tensor& tokens, const Tensor& targets) {
    Tensor x = embedding(tokens);
    for (Layer& layer : layers) x = layer(x);
    const Tensor logits = head(x);
    return ops::cross_entropy(logits.reshape({-1, logits.size(2)}), targets.reshape({-1}));
  }
};

constexpr int64_t kVocabulary = 65;

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
      : model(kVocabulary, options.integer("width", 256), options.integer("layers", 2)),
        tokens(Tensor::randint(0, kVocabulary, {options.integer("B", 32), T})),
        targets(Tensor::randint(0, kVocabulary, {options.integer("B", 32), T})) {
    if (mode == "layer") regions = std::make_unique<compile::Regions>(compile::compile_regions(model));
    if (mode == "cell")
      for (Layer& layer : model.layers)
        regions = std::make_unique<compile::Regions>(compile::compile_module(layer.cell));
    first_ms = step();
    step();
  }
  double step() {
    return ms_of([&] {
      model.zero_grad();
      model(tokens, targets).backward();
    });
  }
  std::vector<double> steps(int64_t n) {
    std::vector<double> times;
    for (int64_t i = 0; i < n; ++i) times.push_back(step());
    return times;
  }
  LanguageModel model;
  Tensor tokens, targets;
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
  const int64_t T = options.integer("T", 128), rounds = options.integer("rounds", 5);
  const std::string mode = options.text("mode", "layer");
  if (options.has("serve")) return serve(options, mode, T), 0;
  if (options.has("compile")) {
    compile::jit_toolchain();
    for (const int64_t n : {T, 2 * T, 4 * T}) {
      compile::forget_unused_kernels();
      const Contender contender(options, mode, n);
      const compile::RegionReport report = contender.regions->report()[0];
      std::printf("T %d: compiled in %.0f ms; %d kernels, %d library calls; first step %.0f ms\n", static_cast<int>(n),
                  report.compile_ms, report.kernels, report.library_calls, contender.first_ms);
    }
    return 0;
  }
  Contender model(options, mode, T);
  std::printf("%s: %.2f ms a step\n", mode.c_str(), median(model.steps(rounds)));
  if (model.regions != nullptr) std::printf("%s\n", model.regions->summary().c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_lstm: %s\n", e.what());
  return 1;
}
