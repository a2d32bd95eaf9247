// bench_shapes: training steps at sequence lengths drawn from 5..256: how often a region compiles, what a length costs when it
// is new, and how much slower code that reads its sizes at run time is than code for one size. --json for one object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/modules/gpt2.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/random.h"

namespace {

using namespace rondo;

double step_ms(nn::GPT2& model, int64_t length) {
  const Tensor tokens = Tensor::randint(0, 65, {8, length + 1});
  const auto start = std::chrono::steady_clock::now();
  model.loss(tokens.slice(1, {0, length}), tokens.slice(1, {1, length + 1})).backward();
  model.zero_grad();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  const nn::GPT2Config config{.vocab_size = 65, .block_size = 256, .n_layer = 2, .n_head = 6, .n_embd = 384};
  nn::GPT2 dynamic(config, 1);
  auto regions = compile::compile_regions(dynamic);
  constexpr int kLengths = 60;
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < kLengths; ++i) lengths.push_back(5 + static_cast<int64_t>(philox(7, i, 0)[0] % 252));
  std::vector<double> extra;  // of the first step at a length, once code exists that serves it
  for (int64_t length : lengths) {
    const double first = step_ms(dynamic, length), again = step_ms(dynamic, length);
    if (regions.report()[0].compilations == 2) extra.push_back(first - again);
  }
  std::vector<double> ratios;
  for (int64_t length : {33, 64, 100, 128, 200, 256}) {
    nn::GPT2 fixed(config, 1);
    compile::compile_regions(fixed, {.shapes = compile::Shapes::kStatic});
    std::vector<double> a, b;
    for (int round = 0; round < 12; ++round) {  // in turns
      a.push_back(step_ms(dynamic, length));
      b.push_back(step_ms(fixed, length));
    }
    ratios.push_back(*std::min_element(a.begin() + 2, a.end()) / *std::min_element(b.begin() + 2, b.end()));
    if (!json) std::printf("length %3ld: dynamic / static %.3f\n", static_cast<long>(length), ratios.back());
  }
  const compile::RegionReport report = regions.report()[0];
  const char* format = json ? "{\"lengths\": %d, \"compilations\": %d, \"recordings\": %d, \"new_length_ms\": %.2f, \"ratio\": %.3f}\n"
                            : "%d lengths drawn: %d compilations, %d recordings, %.2f ms more for a new length; dynamic / static, median: %.3f\n";
  std::printf(format, kLengths, report.compilations, report.entries, median(extra), median(ratios));
}
