// Convolutions of ResNet-50, and a depthwise one, forward and backward.
//
//   bench_convolution [--case=conv3] [--dtype=bf16] [--pass=forward] [--layout=last] [--rounds=7]
//   bench_convolution --serve --case=... --dtype=... --pass=... --layout=...   answers lines "N" with the times of N
//                                                                              steps (peers/README.md)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;

// The same list is in peers/convolution.py.
struct Case {
  const char* name;
  int64_t channels, size, outputs, kernel, stride, groups;
};
constexpr Case kCases[] = {
    {"stem", 3, 224, 64, 7, 2, 1},      {"conv2", 64, 56, 64, 3, 1, 1},        {"expand2", 64, 56, 256, 1, 1, 1},
    {"reduce3", 256, 56, 128, 1, 1, 1}, {"down3", 128, 56, 128, 3, 2, 1},      {"conv3", 128, 28, 128, 3, 1, 1},
    {"side3", 256, 56, 512, 1, 2, 1},   {"conv4", 256, 14, 256, 3, 1, 1},      {"expand4", 256, 14, 1024, 1, 1, 1},
    {"conv5", 512, 7, 512, 3, 1, 1},    {"depthwise", 128, 56, 128, 3, 1, 128}};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Contender {
 public:
  Contender(const Case& c, DType dtype, bool backward, bool last, int64_t batch) : case_(c), backward_(backward) {
    const auto lay = [&](const Tensor& t) {
      return last ? t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : t;
    };
    x_ = lay(Tensor::randn({batch, c.channels, c.size, c.size}).to(dtype));
    w_ = lay(Tensor::randn({c.outputs, c.channels / c.groups, c.kernel, c.kernel}).to(dtype));
    if (backward) x_.requires_grad_(), w_.requires_grad_();
    y_ = forward();
    grad_ = lay(Tensor::randn(y_.sizes()).to(dtype));
    flops_ = 2.0 * static_cast<double>(y_.numel() * (c.channels / c.groups) * c.kernel * c.kernel) * (backward ? 2 : 1);
  }
  double step_ms() {
    const auto start = std::chrono::steady_clock::now();
    if (backward_) {
      const Tensor leaves[] = {x_, w_};
      autograd::grad({&y_, 1}, leaves, {&grad_, 1}, true);
    } else forward();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  double flops() const { return flops_; }

 private:
  Tensor forward() const {
    return ops::conv2d(x_, w_, {}, {.stride = case_.stride, .padding = case_.kernel / 2, .groups = case_.groups});
  }
  const Case& case_;
  const bool backward_;
  Tensor x_, w_, y_, grad_;
  double flops_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options(argc, argv);
  const std::string only = options.text("case", ""), pass = options.text("pass", "");
  const bool last = options.text("layout", "usual") == "last", serve = options.has("serve");
  const DType dtype = options.text("dtype", "f32") == "bf16" ? kBF16 : kF32;
  const int64_t batch = options.integer("batch", 16);
  for (const Case& c : kCases) {
    if (!only.empty() && only != c.name) continue;
    for (const std::string p : {"forward", "backward"}) {
      if (!pass.empty() && p != pass) continue;
      Contender contender(c, dtype, p == "backward", last, batch);
      contender.step_ms();
      if (!serve) {
        std::vector<double> times;
        for (int64_t i = 0; i < options.integer("rounds", 7); ++i) times.push_back(contender.step_ms());
        std::printf("%-10s %-8s %8.2f ms %7.0f GFLOP/s\n", c.name, p.c_str(), median(times),
                    contender.flops() / median(times) / 1e6);
        continue;
      }
      for (std::string line; std::getline(std::cin, line);) {
        std::vector<double> times;
        for (int64_t i = bench::whole_number(line); i > 0; --i) times.push_back(contender.step_ms());
        const nlohmann::json answer = {{"peer", "rondo"},
                                       {"step_ms_all", times},
                                       {"compile_ms", 0.0},
                                       {"step_ms_median", times.empty() ? 0.0 : median(times)}};
        std::cout << answer.dump() << std::endl;
      }
    }
  }
}
