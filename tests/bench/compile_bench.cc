// What a start costs: a GPT-2 block (12 heads, 768 wide), forward and backward, from nothing in memory.
//   bench_compile            RONDO_CACHE_DIR decides whether it finds compiled kernels
#include <chrono>
#include <cstdio>

#include "rondo/compile/compile.h"
#include "rondo/modules/attention.h"
#include "rondo/runtime/ops/ops.h"

namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main() {
  using namespace rondo;
  nn::TransformerBlock block(768, 12, {});
  const Tensor x = Tensor::randn({1, 64, 768}).requires_grad_();
  const auto step = [&] {
    const auto start = std::chrono::steady_clock::now();
    ops::sum(block(x)).backward();
    return ms_since(start);
  };
  step();  // eager: the library's primitives, the pool
  const double eager = step();
  const compile::Regions regions = compile::compile_module(block);
  const double first = step();
  const compile::RegionReport report = regions.report()[0];
  step();
  const double second = step();
  std::printf("eager step %.1f ms, first compiled step %.1f ms, next %.1f ms; compiler %.1f ms for %d kernels in %d entries\n",
              eager, first, second, report.compile_ms, report.kernels, report.entries);
}
