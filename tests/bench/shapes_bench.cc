// bench_shapes: training steps at sequence lengths drawn from 5..256: how often a region compiles, what a length costs
// when it is new, and how much slower its code is than code for one size, for automatic shapes, a marked dimension and
// one with eight buckets. Then the same for a length that is the kernels' last dimension, where ranges and multiples
// change the code.
// --json for one object a line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace {

using namespace rondo;

double ms_of(absl::FunctionRef<void()> body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

std::vector<int64_t> draw_lengths(int n, int64_t low, int64_t high, int64_t multiple) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < n; ++i)
    lengths.push_back((low + static_cast<int64_t>(philox(7, static_cast<uint64_t>(i), 0)[0] %
                                                  static_cast<uint32_t>(high - low + 1))) /
                      multiple * multiple);
  return lengths;
}

// A compiled model and a training step of it.
struct Workload {
  virtual ~Workload() = default;
  virtual void step(int64_t length) = 0;
  compile::Regions regions{{}};
};

struct Gpt final : Workload {
  explicit Gpt(compile::CompileOptions options) { regions = compile::compile_regions(model, std::move(options)); }
  void step(int64_t length) override {
    const Tensor tokens = Tensor::randint(0, 65, {8, length + 1});
    model.loss(tokens.slice(1, {0, length}), tokens.slice(1, {1, length + 1})).backward();
    model.zero_grad();
  }
  nn::GPT2 model{{.vocab_size = 65, .block_size = 256, .n_layer = 2, .n_head = 6, .n_embd = 384}, 1};
};

struct Rows : nn::Module<Rows> {
  Tensor forward(const Tensor& x) {  // (N, T)
    const Tensor centred = x - ops::mean(x, {-1}, true);
    return ops::softmax(centred) * 2.0 + centred;
  }
};
struct Columns final : Workload {
  explicit Columns(compile::CompileOptions options) { regions = compile::compile_module(rows, std::move(options)); }
  void step(int64_t length) override {
    if (x.rank() == 0 || x.size(1) != length) x = Tensor::randn({4096, length});
    rows(x);
  }
  Rows rows;
  Tensor x = Tensor::scalar<float>(0);
};

template <class W>
void measure(const char* workload, const char* mode, bool json, const compile::CompileOptions& options,
             const std::vector<int64_t>& lengths, const std::vector<int64_t>& timed, int rounds) {
  compile::forget_unused_kernels();
  W dynamic(options);
  std::vector<double> extra;  // of the first step at a length for which no code had to be made
  for (int64_t length : lengths) {
    const int before = dynamic.regions.report()[0].compilations;
    const double first = ms_of([&] { dynamic.step(length); }), again = ms_of([&] { dynamic.step(length); });
    if (dynamic.regions.report()[0].compilations == before) extra.push_back(first - again);
  }
  const compile::RegionReport report = dynamic.regions.report()[0];
  std::vector<double> ratios;
  for (int64_t length : timed) {
    W fixed({.shapes = compile::Shapes::kStatic});
    std::vector<double> a, b;
    for (int round = 0; round < rounds; ++round) {  // in turns
      a.push_back(ms_of([&] { dynamic.step(length); }));
      b.push_back(ms_of([&] { fixed.step(length); }));
    }
    ratios.push_back(*std::min_element(a.begin() + 2, a.end()) / *std::min_element(b.begin() + 2, b.end()));
  }
  if (json) {
    std::printf(
        "{\"workload\": \"%s\", \"mode\": \"%s\", \"lengths\": %zu, \"compilations\": %d, \"recordings\": %d, "
        "\"new_length_ms\": %.2f, \"ratio\": %.3f, \"worst_ratio\": %.3f}\n",
        workload, mode, lengths.size(), report.compilations, report.entries, median(extra), median(ratios),
        *std::max_element(ratios.begin(), ratios.end()));
    return;
  }
  std::printf(
      "%-8s %-22s %2zu lengths: %d compilations, %2d recordings, %5.2f ms more for a new one; to static, median %.3f:",
      workload, mode, lengths.size(), report.compilations, report.entries, median(extra), median(ratios));
  for (size_t i = 0; i < timed.size(); ++i) std::printf(" %ld:%.3f", static_cast<long>(timed[i]), ratios[i]);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  const auto marked = [](DynamicRange range) {
    return compile::CompileOptions{.dynamic = {{.argument = 0, .dim = 1, .range = std::move(range)}}};
  };
  const DynamicRange range{.min = 5, .max = 256}, buckets{.min = 5, .max = 256, .buckets = 8},
      multiples{.min = 32, .max = 256, .multiple_of = 32};
  const std::vector<int64_t> any = draw_lengths(60, 5, 256, 1), even = draw_lengths(20, 32, 256, 32);
  const std::vector<int64_t> timed{33, 64, 100, 128, 200, 256}, timed_even{32, 64, 96, 128, 224, 256};
  measure<Gpt>("gpt", "automatic", json, {}, any, timed, 12);
  measure<Gpt>("gpt", "marked", json, marked(range), any, timed, 12);
  measure<Gpt>("gpt", "eight buckets", json, marked(buckets), any, timed, 12);
  measure<Gpt>("gpt", "multiples of 32", json, marked(multiples), even, timed_even, 12);
  const std::vector<int64_t> narrow{9, 16, 24, 31, 33, 100, 256};
  measure<Columns>("columns", "automatic", json, {}, any, narrow, 40);
  measure<Columns>("columns", "marked", json, marked(range), any, narrow, 40);
  measure<Columns>("columns", "eight buckets", json, marked(buckets), any, narrow, 40);
  measure<Columns>("columns", "buckets 16, 31, 256", json, marked({.min = 5, .bucket_bounds = {16, 31, 256}}), any,
                   narrow, 40);
  measure<Columns>("columns", "automatic, multiples", json, {}, even, timed_even, 40);
  measure<Columns>("columns", "multiples of 32", json, marked(multiples), even, timed_even, 40);
}
