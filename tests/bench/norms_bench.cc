// relu(batch_norm(x) + residual) in training, forward, and forward and backward, at two sizes of ResNet-50 with
// batch 16.
//
//   bench_norms [--case=wide|deep] [--dtype=bf16] [--mode=eager|compiled] [--pass=forward|step] [--layout=last]
//               [--rounds=15]
//   bench_norms --serve --case=... --dtype=... --mode=... --pass=... --layout=...   answers lines "N" with the times of
//                                                                                   N steps (peers/README.md)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/compile/compile.h"
#include "rondo/modules/layers/channel_norm.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;

// The same list is in peers/norms.py.
struct Case {
  const char* name;
  Dims sizes;
};
const Case kCases[] = {{"wide", {16, 64, 56, 56}}, {"deep", {16, 512, 14, 14}}};

struct Tail : nn::Module<Tail> {
  explicit Tail(int64_t channels) : channels(channels) {}
  int64_t channels;
  nn::BatchNorm2d bn = child("bn", channels);
  Tensor forward(const Tensor& x, const Tensor& residual) { return ops::relu(bn(x) + residual); }
};

class Contender {
 public:
  Contender(const Case& what, DType dtype, const std::string& mode, bool backward, bool last)
      : tail_(what.sizes[1]), backward_(backward) {
    const auto image = [&] {
      const Tensor t = Tensor::randn(what.sizes).to(dtype);
      return last ? t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : t;
    };
    x_ = image().requires_grad_();
    residual_ = image().requires_grad_();
    grad_ = image();
    if (mode == "compiled") regions_.emplace(compile::compile_module(tail_));
    for (int warm = 0; warm < 3; ++warm) step_ms();
  }
  double step_ms() {
    const auto start = std::chrono::steady_clock::now();
    const Tensor y = tail_(x_, residual_);
    if (backward_) {
      const Tensor leaves[] = {x_, residual_, tail_.bn.weight, tail_.bn.bias};
      autograd::grad({&y, 1}, leaves, {&grad_, 1});
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  Tail tail_;
  const bool backward_;
  Tensor x_, residual_, grad_;
  std::optional<compile::Regions> regions_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void serve(Contender& contender) {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> steps;
    for (int64_t n = std::atoi(line.c_str()); n > 0; --n) steps.push_back(contender.step_ms());
    const nlohmann::json answer = {{"peer", "rondo"}, {"step_ms_all", steps}, {"step_ms_median", median(steps)}};
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  for (const Case& c : kCases)
    for (const DType dtype : {kF32, kBF16})
      for (const std::string mode : {"eager", "compiled"})
        for (const std::string pass : {"forward", "step"}) {
          const std::string type(name_of(dtype));
          if (options.text("case", c.name) != c.name || options.text("dtype", type) != type ||
              options.text("mode", mode) != mode || options.text("pass", pass) != pass)
            continue;
          Contender contender(c, dtype, mode, pass == "step", options.text("layout", "usual") == "last");
          if (options.has("serve")) return serve(contender), 0;
          std::vector<double> steps;
          for (int64_t round = options.integer("rounds", 15); round > 0; --round) steps.push_back(contender.step_ms());
          std::printf("%-5s %-5s %-8s %-8s %7.3f ms\n", c.name, type.c_str(), mode.c_str(), pass.c_str(),
                      median(steps));
          std::fflush(stdout);
        }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
