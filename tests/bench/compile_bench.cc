// What a start costs: a GPT-2 block (12 heads, 768 wide), forward and backward, compiled again and again, as in a new
// process.
//   RONDO_CACHE=off bench_compile     cold
//   bench_compile; bench_compile      the second is warm from disk
//   bench_compile 12                  a stack of twelve, compiled whole
//   RONDO_CACHE=off bench_compile chain 500 1000 2000     so many times sin, mul and add, in milliseconds per op
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/runtime/ops/ops.h"

namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

struct Stack : rondo::nn::Module<Stack> {
  explicit Stack(int64_t layers) : layers(layers) {}
  int64_t layers;
  rondo::nn::ModuleList<rondo::nn::TransformerBlock> h = child("h", layers, 768, 12);
  rondo::Tensor forward(const rondo::Tensor& x) {
    rondo::Tensor y = x;
    for (int64_t i = 0; i < layers; ++i) y = h[i](y);
    return y;
  }
};

// So many times (sin, mul, add), one after the other.
struct Chain : rondo::nn::Module<Chain> {
  explicit Chain(int64_t length) : length(length) {}
  int64_t length;
  rondo::Tensor forward(const rondo::Tensor& x) {
    rondo::Tensor y = x;
    for (int64_t i = 0; i < length; ++i) y = rondo::ops::sin(y) * x + y;
    return y;
  }
};

void compile_chain(int64_t length, bool gradients) {
  Chain chain(length);
  const rondo::compile::Regions regions = rondo::compile::compile_module(chain);
  const rondo::Tensor x = rondo::Tensor::randn({16, 64}).requires_grad_(gradients);
  rondo::compile::forget_unused_kernels();
  const auto start = std::chrono::steady_clock::now();
  const rondo::Tensor y = chain(x);
  if (gradients) rondo::ops::sum(y).backward();
  const double ms = ms_since(start);
  const rondo::compile::RegionReport report = regions.report()[0];
  std::printf("%5d x (sin, mul, add)%s: %7.1f ms, %.3f ms an op, %d kernels\n", static_cast<int>(length),
              gradients ? ", with gradients" : "", ms, ms / static_cast<double>(3 * length), report.kernels);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace rondo;
  if (argc > 1 && std::string(argv[1]) == "chain") {
    compile::jit_toolchain();
    for (bool gradients : {false, true})
      for (int i = 2; i < argc; ++i) compile_chain(std::atoi(argv[i]), gradients);
    return 0;
  }
  Stack block(argc > 1 ? std::atoi(argv[1]) : 1);
  const Tensor x = Tensor::randn({1, 64, 768}).requires_grad_();
  const auto step = [&] {
    const auto start = std::chrono::steady_clock::now();
    ops::sum(block(x)).backward();
    return ms_since(start);
  };
  for (int i = 0; i < 3; ++i) step();  // eager: the library's primitives, the pool
  const char* mode = std::getenv("RONDO_CACHE");
  if (mode != nullptr && std::string(mode) == "off") {
    const auto start = std::chrono::steady_clock::now();
    compile::jit_toolchain();
    std::printf("loading LLVM: %.1f ms\n", ms_since(start));
  }
  const auto start_once = [&] {
    const compile::Regions regions = compile::compile_module(block);
    const double first = step();
    const compile::RegionReport report = regions.report()[0];
    const double second = std::min({step(), step(), step()});
    const compile::CacheReport cache = compile::cache_report();
    std::printf("compiler %.2f ms (%d kernels); first step %.1f ms, then %.1f ms; so far from disk %d, compiled %d\n",
                report.compile_ms, report.kernels, first, second, static_cast<int>(cache.from_disk),
                static_cast<int>(cache.misses));
    compile::disable(block);
  };
  for (int i = 0; i < 5; ++i) {
    start_once();
    compile::forget_unused_kernels();
  }
}
