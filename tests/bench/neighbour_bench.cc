// bench_neighbour: small ops whose time is waiting, if anything is: a mean over 131,072 elements, and a cat of two such
// tensors. neighbour.py runs it alone and beside busy processes.
//
//   bench_neighbour --runs=2000
//
// With --serve each line N on stdin does N runs of each and prints one JSON line (tests/bench/peers).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace {

using namespace rondo;

template <class Op> nlohmann::ordered_json times(int64_t runs, Op&& op) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> ms;
  for (int64_t i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    op();
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  double sum = 0;
  for (double t : ms) sum += t;
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double share) { return ms.empty() ? 0 : ms[static_cast<size_t>(share * (ms.size() - 1))]; };
  return {
      {"mean_ms", ms.empty() ? 0 : sum / static_cast<double>(ms.size())}, {"median_ms", at(0.5)}, {"p99_ms", at(0.99)}};
}

std::string run(int64_t runs) {
  const NoGrad off;
  static const Tensor a = Tensor::full({128, 1024}, 0.5), b = Tensor::full({128, 1024}, 0.25);
  return nlohmann::ordered_json{{"mean", times(runs, [] { ops::mean(a); })},
                                {"cat", times(runs,
                                              [] {
                                                const Tensor both[] = {a, b};
                                                ops::cat(both, 0);
                                              })}}
      .dump();
}

}  // namespace

int main(int argc, char** argv) try {
  bool serve = false;
  int64_t runs = 2000;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--serve") serve = true;
    else if (option.rfind("--runs=", 0) == 0) runs = std::stoll(option.substr(7));
    else throw Error("unexpected argument " + option);
  }
  if (!serve) return std::puts(run(runs).c_str()), 0;
  for (int64_t n = 0; std::cin >> n;) std::cout << run(n) << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_neighbour: %s\n", error.what());
  return 1;
}
