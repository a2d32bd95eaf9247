// What one 64-element f32 add costs in libtorch, from C++, on one thread, without and with the tape.
// Prints one JSON line. Built and run by dispatch_libtorch.sh.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int kCount = 500'000;
constexpr int kRepeats = 7;

struct Timing {
  double median_ns;
  double min_ns;
};

Timing time_add(const at::Tensor& a, const at::Tensor& b) {
  std::vector<double> ns;
  for (int r = 0; r <= kRepeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCount; ++i) {
      at::Tensor c = at::add(a, b);
      asm volatile("" : : "r"(&c) : "memory");
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    if (r > 0) ns.push_back(spent.count() / kCount);  // the first one only warms up
  }
  std::sort(ns.begin(), ns.end());
  return {ns[ns.size() / 2], ns.front()};
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const at::Tensor a = at::randn({64});
  const at::Tensor b = at::randn({64});
  at::Tensor weight = at::randn({64});
  weight.set_requires_grad(true);

  Timing plain{}, inference{};
  {
    c10::NoGradGuard no_grad;
    plain = time_add(a, b);
  }
  {
    c10::InferenceMode mode;
    inference = time_add(at::randn({64}), at::randn({64}));
  }
  const Timing taped = time_add(weight, b);
  std::printf(
      "{\"peer\": \"libtorch\", \"op\": \"add f32[64]\", \"threads\": 1, \"no_grad_ns\": %.1f, "
      "\"no_grad_ns_min\": %.1f, \"inference_mode_ns\": %.1f, \"tape_ns\": %.1f, \"tape_ns_min\": %.1f}\n",
      plain.median_ns, plain.min_ns, inference.median_ns, taped.median_ns, taped.min_ns);
}
