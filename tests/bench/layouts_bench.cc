// Reductions and copies across a tensor of some 200 MB, beside the machine's stream: the same threads read, or read and
// write, as many bytes, in the same run.
//
//   statistics   mean and variance per channel of (32, 64, 160, 160), beside two reads of x
//   softmax      along dimension 1 of (16, 64, 224, 224): reads x and writes as much
//   transpose    a dense copy of the transposed (7168, 7168)
//   channels     a dense copy of (16, 64, 224, 224) with the channels last
//
//   bench_layouts [--case=softmax] [--mode=eager|compiled] [--rounds=7]
//   bench_layouts --serve ...      answers lines "N" with the times of N steps (peers/README.md)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/compile/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/bench/stream.h"

namespace {

using namespace rondo;

using Results = std::vector<Tensor>;

struct Case {
  const char* name;
  Dims sizes;
  int reads;    // of all elements
  bool writes;  // as many
  Results (*run)(const Tensor& x);
};
const Case kCases[] = {
    {"statistics",
     {32, 64, 160, 160},
     2,
     false,
     [](const Tensor& x) {
       const auto [var, mean] = ops::var_mean(x, {0, 2, 3}, 0.0);
       return Results{mean, var};
     }},
    {"softmax", {16, 64, 224, 224}, 1, true, [](const Tensor& x) { return Results{ops::softmax(x, 1)}; }},
    {"transpose", {7168, 7168}, 1, true, [](const Tensor& x) { return Results{x.t().contiguous()}; }},
    {"channels",
     {16, 64, 224, 224},
     1,
     true,
     [](const Tensor& x) {
       return Results{x.permute({0, 2, 3, 1}).contiguous()};
     }},
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

class Contender {
 public:
  Contender(const Case& what, const std::string& mode)
      : case_(what), x_(Tensor::randn(what.sizes)), compiled_(compile::compile(what.run)) {
    if (mode == "compiled") step_ = [this] { compiled_(x_); };
    else step_ = [this] { case_.run(x_); };
    for (int warm = 0; warm < 2; ++warm) turn();
  }
  struct Times {
    double step, stream;
  };
  Times turn() {
    Times times{};
    times.stream = ms_of([&] {
      if (case_.writes) {
        Tensor to = Tensor::empty(case_.sizes);  // as the step has it: memory from the cache
        bench::copy_all(x_.data<float>(), to.mutable_data<float>(), x_.numel());
      } else {
        for (int pass = 0; pass < case_.reads; ++pass) bench::read_all(x_.data<float>(), x_.numel());
      }
    });
    times.step = ms_of(step_);
    return times;
  }

 private:
  const Case& case_;
  Tensor x_;
  compile::Compiled<Results (*)(const Tensor&)> compiled_;
  std::function<void()> step_;
};

const Case& case_named(const std::string& name) {
  for (const Case& c : kCases)
    if (name == c.name) return c;
  throw Error("no case " + name);
}

void serve(const std::string& name, const std::string& mode) {
  Contender contender(case_named(name), mode);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> steps, streams;
    for (int64_t n = std::atoi(line.c_str()); n > 0; --n) {
      const auto [step, stream] = contender.turn();
      steps.push_back(step), streams.push_back(stream);
    }
    const nlohmann::json answer = {{"peer", "rondo"},
                                   {"mode", mode},
                                   {"step_ms_all", steps},
                                   {"step_ms_median", median(steps)},
                                   {"stream_ms_median", median(streams)}};
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  const NoGrad off;
  const std::string only = options.text("case", ""), mode = options.text("mode", "");
  if (options.has("serve")) return serve(only, mode), 0;
  const int64_t rounds = options.integer("rounds", 7);
  for (const Case& c : kCases) {
    if (!only.empty() && only != c.name) continue;
    for (const std::string& m : {std::string("eager"), std::string("compiled")}) {
      if (!mode.empty() && mode != m) continue;
      Contender contender(c, m);
      std::vector<double> steps, streams, shares;
      for (int64_t round = 0; round < rounds; ++round) {
        const auto [step, stream] = contender.turn();
        steps.push_back(step), streams.push_back(stream), shares.push_back(stream / step);
      }
      std::printf("%-10s %-8s %7.2f ms   stream %7.2f ms   share %.2f\n", c.name, m.c_str(), median(steps),
                  median(streams), median(shares));
      std::fflush(stdout);
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
