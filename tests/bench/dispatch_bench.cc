// bench_dispatch: what one small op costs. A 64-element f32 add on one thread, without gradients and with the tape, in
// nanoseconds; the same of other ops, without gradients; beside PyTorch's and libtorch's if their programs are
// there (tests/bench/peers).
//
//   bench_dispatch [--peers]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"

namespace {

using namespace rondo;

// Median over batches of the mean time of one call.
template <class F> double nanoseconds(F f) {
  constexpr int kBatches = 41, kCalls = 20000;
  std::vector<double> times;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) f();
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
                    kCalls);
  }
  std::sort(times.begin(), times.end());
  return times[kBatches / 2];
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(1);
  const Tensor a = Tensor::randn({64}), b = Tensor::randn({64});
  Tensor leaf = Tensor::randn({64});
  leaf.requires_grad_();
  const double plain = no_grad([&] { return nanoseconds([&] { const Tensor c = a + b; }); });
  const double taped = nanoseconds([&] { const Tensor c = leaf + b; });
  std::printf("{\"peer\": \"rondo\", \"op\": \"add f32[64]\", \"no_grad_ns\": %.0f, \"tape_ns\": %.0f}\n", plain,
              taped);
  const Tensor mask = a > 0.0;
  NoGrad off;
  const Tensor rows = Tensor::randn({16, 32}), weight = Tensor::randn({32, 32});
  const Tensor image = Tensor::randn({1, 16, 4, 4}), kernels = Tensor::randn({16, 16, 1, 1}),
               bias = Tensor::randn({16});
  const std::pair<const char*, double> others[] = {
      {"less f32[64] and a number", nanoseconds([&] { const Tensor c = a < 0.5; })},
      {"where f32[64] and a number", nanoseconds([&] { const Tensor c = ops::where(mask, a, 0.0); })},
      {"masked_fill f32[64]", nanoseconds([&] { const Tensor c = ops::masked_fill(a, mask, 0.0); })},
      {"maximum f32[64] and a number", nanoseconds([&] { const Tensor c = ops::maximum(a, 0.5); })},
      {"matmul f32[16, 32] by f32[32, 32]", nanoseconds([&] { const Tensor c = ops::matmul(rows, weight); })},
      {"conv2d f32[1, 16, 4, 4] by f32[16, 16, 1, 1]",
       nanoseconds([&] { const Tensor c = ops::conv2d(image, kernels, bias); })},
  };
  for (const auto& [op, time] : others)
    std::printf("{\"peer\": \"rondo\", \"op\": \"%s\", \"no_grad_ns\": %.0f}\n", op, time);
  std::fflush(stdout);
  if (argc < 2 || std::string(argv[1]) != "--peers") return 0;
  const std::string folder = std::string(RONDO_SOURCE_DIR) + "/tests/bench/peers";
  const std::string python = "\"${RONDO_PEERS_VENV:-$HOME/.cache/rondo-peers}/bin/python\"";
  const bool ran = std::system(("OMP_NUM_THREADS=1 " + python + " " + folder + "/dispatch.py").c_str()) == 0 &&
                   std::system(("sh " + folder + "/dispatch_libtorch.sh").c_str()) == 0;
  if (!ran) std::fprintf(stderr, "bench_dispatch: run tests/bench/peers/setup.sh first\n");
  return ran ? 0 : 1;
}
