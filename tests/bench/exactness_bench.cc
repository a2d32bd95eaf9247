// Default mode beside exact mode: what the rewrites of codegen/relax.h are worth. Forward and backward of small regions
// on arrays that stay in the caches, on one thread; the two modes alternate.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

using Function = std::function<Tensor(const Tensor&)>;

double us(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) f();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 20;
}

void report(const char* name, const Function& function, const Dims& sizes, DType dtype) {
  const compile::Capture replay = compile::Capture::kReplay;
  auto exact = compile::compile(function, {.exact = true, .capture = replay});
  auto relaxed = compile::compile(function, {.capture = replay});
  Tensor x = Tensor::randn(sizes).to(dtype).detach().requires_grad_();
  const Tensor seed = Tensor::randn(sizes).to(dtype);
  const auto forward = [&](auto& f) {
    const NoGrad off;
    f(x);
  };
  const auto both = [&](auto& f) {
    x.set_grad({});
    f(x).backward(seed);
  };
  std::vector<double> ratios[2], times[2];
  for (int round = 0; round < 61; ++round) {
    const double a = us([&] { forward(exact); }), b = us([&] { forward(relaxed); });
    const double c = us([&] { both(exact); }), d = us([&] { both(relaxed); });
    if (round == 0) continue;
    times[0].push_back(a), times[1].push_back(c);
    ratios[0].push_back(b / a), ratios[1].push_back(d / c);
  }
  const auto median = [](std::vector<double>& v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  std::printf("%-12s %-5s forward %8.1f us, default %5.3f of it   with backward %8.1f us, default %5.3f of it\n", name,
              std::string(name_of(dtype)).c_str(), median(times[0]), median(ratios[0]), median(times[1]),
              median(ratios[1]));
}

}  // namespace
}  // namespace rondo

int main() {
  using namespace rondo;
  set_num_threads(1);
  const Tensor w = Tensor::randn({768}).requires_grad_(), b = Tensor::randn({768}).requires_grad_();
  for (DType dtype : {kF32, kBF16}) {
    const Tensor weight = w.to(dtype).detach().requires_grad_(), bias = b.to(dtype).detach().requires_grad_();
    report(
        "softmax", [](const Tensor& x) { return ops::softmax(x); }, {128, 768}, dtype);
    report(
        "log_softmax", [](const Tensor& x) { return ops::log_softmax(x); }, {128, 768}, dtype);
    report(
        "gelu", [](const Tensor& x) { return ops::gelu(x); }, {128, 768}, dtype);
    report(
        "silu", [](const Tensor& x) { return ops::silu(x); }, {128, 768}, dtype);
    report(
        "layer_norm", [&](const Tensor& x) { return ops::layer_norm(x, weight, bias); }, {128, 768}, dtype);
    report(
        "rms_norm", [&](const Tensor& x) { return ops::rms_norm(x, weight); }, {128, 768}, dtype);
    report(
        "chain", [&](const Tensor& x) { return ops::tanh(x * weight + bias) * x + x * 0.5; }, {128, 768}, dtype);
  }
}
