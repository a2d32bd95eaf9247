// What collectives cost between the processes of a job.   rondorun --nproc-per-node 2 bench_dist
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <vector>

#include "rondo/dist/groups/process_group.h"

namespace rondo {
namespace {

// Median of `n` runs, in microseconds.
template <class F> double median_us(int n, F&& fn) {
  std::vector<double> times;
  for (int i = 0; i < n; ++i) {
    const auto began = std::chrono::steady_clock::now();
    fn();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
  }
  std::nth_element(times.begin(), times.begin() + n / 2, times.end());
  return times[static_cast<size_t>(n / 2)];
}

void run() {
  const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());
  const bool lead = group->rank() == 0;
  const double barrier = median_us(1001, [&] { group->barrier("barrier").wait(); });
  if (lead) std::printf("%d ranks\nbarrier                 %9.1f us\n", group->world_size(), barrier);
  for (const DType dtype : {kF32, kBF16})
    for (int64_t n : {int64_t{64}, int64_t{1} << 12, int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 24}) {
      const Tensor tensor = Tensor::ones({n}, {dtype});
      const double us = median_us(n > 1 << 20 ? 11 : 101,
                                  [&] { group->all_reduce(tensor, dist::ReduceOp::kAverage, "bench").wait(); });
      if (lead)
        std::printf("all_reduce %4s %8lld  %9.1f us  %6.2f GB/s of tensor\n", std::string(name_of(dtype)).c_str(),
                    static_cast<long long>(n), us, static_cast<double>(tensor.nbytes()) / us * 1e-3);
    }
}

}  // namespace
}  // namespace rondo

int main() {
  try {
    rondo::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_dist: %s\n", error.what());
    return 1;
  }
}
