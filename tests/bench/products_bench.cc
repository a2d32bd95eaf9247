// f32 products of two matrices, each as it lies (nn), with the first transposed (tn), or the second (nt), in turns:
//   ours      ops::matmul
//   oneDNN    the library's own kernel on as many threads of its own
//   floor     the best of all ways for the size (product_ways.h)
// Medians in GFLOP/s, and the median ratio within a round.
//
//   bench_products [--sizes=2048x1024x2048,...] (rows x inner x columns) [--layouts=nn,tn,nt] [--rounds=7]
//   [--threads=2] bench_products --serve --sizes=2048x1024x2048 --layouts=nn    answers lines "N" with the times of N
//   products
//                                                                 (peers/README.md)
//   bench_products --pad=8,16,64 [--dtype=f32|bf16] [--sizes=...] [--layouts=...] [--rounds=7]
// is about padding (what other compilers call shape padding): the time of our product with all sizes rounded up to
// multiples of each number, over that of the product as it is. First of operands that were padded before, which is the
// most that it can gain, then with the copies: padding pays below 1.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/bench/product_ways.h"

namespace {

using namespace rondo;
using bench::ProductSize, bench::ProductWay;

constexpr char kSizes[] =
    "32x256x1024,128x1024x1024,256x1024x2048,512x512x512,1024x1024x1024,2048x1024x2048,2000x1024x2000,2064x1024x2064,"
    "2048x384x1536,2048x768x3072,2048x3072x768,3072x2048x768,4096x1024x4096";

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<ProductWay> ways_of(const ProductSize& size) {
  std::vector<ProductWay> ways;
  bench::each_product_way(size, kF32, [&](ProductWay way) { ways.push_back(std::move(way)); });
  return ways;
}

void compare(const ProductSize& size, const std::vector<std::string>& layouts, int64_t rounds) {
  const std::vector<ProductWay> ways = ways_of(size);
  std::vector<std::vector<double>> rates(ways.size());
  const int runs = static_cast<int>(std::clamp(2e8 / size.flops(), 1.0, 50.0));  // short products: several a turn
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < ways.size(); ++i)
      rates[i].push_back(size.flops() * runs / 1e9 / bench::seconds_of(ways[i], runs));
  double floor = 0;
  for (const std::vector<double>& r : rates) floor = std::max(floor, median(r));
  for (const std::string& layout : layouts) {
    const auto rates_of = [&](bool ours) {
      const auto way = std::find_if(ways.begin(), ways.end(), [&](const ProductWay& w) {
        return w.layout == layout && !w.spread && w.ours == ours;
      });
      return rates.at(static_cast<size_t>(way - ways.begin()));
    };
    const std::vector<double> ours = rates_of(true), peer = rates_of(false);
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / peer[i]);
    std::printf("%s (%ld x %ld)(%ld x %ld): ours %.1f, oneDNN %.1f, ratio %.3f, floor %.1f\n", layout.c_str(), size.m,
                size.k, size.k, size.n, median(ours), median(peer), median(ratios), floor);
    std::fflush(stdout);
  }
}

// Our product as it is, of operands that were padded before, and with the copies that padding takes, in turns.
void pad(const ProductSize& size, DType dtype, const std::vector<int64_t>& multiples,
         const std::vector<std::string>& layouts, int64_t rounds) {
  const NoGrad off;
  const int runs = static_cast<int>(std::clamp(2e8 / size.flops(), 1.0, 50.0));
  for (const std::string& layout : layouts) {
    const auto product = [&](const Tensor& a, const Tensor& b) {
      return ops::matmul(layout == "tn" ? a.t() : a, layout == "nt" ? b.t() : b);
    };
    const auto stored = [&](bool transposed, int64_t rows, int64_t columns) {
      return Tensor::randn(transposed ? Dims{columns, rows} : Dims{rows, columns}).to(dtype);
    };
    const Tensor a = stored(layout == "tn", size.m, size.k), b = stored(layout == "nt", size.k, size.n);
    std::vector<ProductWay> ways = {{layout, false, true, [&] { product(a, b); }}};
    for (const int64_t multiple : multiples) {
      const auto padded = [multiple](const Tensor& t) {
        const auto more = [multiple](int64_t n) { return (multiple - n % multiple) % multiple; };
        return ops::pad(t, {0, more(t.size(1)), 0, more(t.size(0))});
      };
      ways.push_back({layout, false, true, [=, x = padded(a), y = padded(b)] { product(x, y); }});
      ways.push_back({layout, false, true, [=] {
                        product(padded(a), padded(b)).slice(0, {0, size.m}).slice(1, {0, size.n}).contiguous();
                      }});
    }
    std::vector<std::vector<double>> ratios(ways.size());
    for (int64_t round = 0; round < rounds; ++round) {
      const double plain = bench::seconds_of(ways[0], runs);
      for (size_t i = 1; i < ways.size(); ++i) ratios[i].push_back(bench::seconds_of(ways[i], runs) / plain);
    }
    std::printf("%s (%ld x %ld)(%ld x %ld):", layout.c_str(), size.m, size.k, size.k, size.n);
    for (size_t i = 0; i < multiples.size(); ++i)
      std::printf("  to %ld %.2f (%.2f)", multiples[i], median(ratios[2 * i + 1]), median(ratios[2 * i + 2]));
    std::printf("\n");
    std::fflush(stdout);
  }
}

void serve(const ProductSize& size, const std::string& layout) {
  const std::vector<ProductWay> ways = ways_of(size);
  const ProductWay& ours = *std::find_if(
      ways.begin(), ways.end(), [&](const ProductWay& w) { return w.layout == layout && !w.spread && w.ours; });
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> ms;
    for (int64_t n = std::atoi(line.c_str()); n > 0; --n) ms.push_back(1e3 * bench::seconds_of(ours, 1));
    const nlohmann::json answer = {
        {"peer", "rondo"}, {"step_ms_all", ms}, {"compile_ms", 0.0}, {"step_ms_median", median(ms)}};
    std::cout << answer.dump() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  set_num_threads(static_cast<int>(options.integer("threads", 2)));
  std::vector<ProductSize> sizes;
  for (const auto text : absl::StrSplit(options.text("sizes", kSizes), ',')) {
    const std::vector<std::string> numbers = absl::StrSplit(text, 'x');
    if (numbers.size() != 3) throw Error("--sizes: rows x inner x columns, as 2048x1024x2048");
    sizes.push_back(
        {bench::whole_number(numbers[0]), bench::whole_number(numbers[1]), bench::whole_number(numbers[2])});
  }
  const std::vector<std::string> layouts = absl::StrSplit(options.text("layouts", "nn,tn,nt"), ',');
  for (const std::string& layout : layouts)
    if (layout != "nn" && layout != "tn" && layout != "nt")
      throw Error("--layouts: nn, tn or nt, not '" + layout + "'");
  if (options.has("serve")) {
    serve(sizes.at(0), layouts.at(0));
    return 0;
  }
  if (options.has("pad")) {
    std::vector<int64_t> multiples;
    for (const auto text : absl::StrSplit(options.text("pad", ""), ','))
      multiples.push_back(bench::whole_number(std::string(text)));
    const std::string dtype = options.text("dtype", "f32");
    if (dtype != "f32" && dtype != "bf16") throw Error("--dtype: f32 or bf16, not '" + dtype + "'");
    for (const ProductSize& size : sizes)
      pad(size, dtype == "f32" ? kF32 : kBF16, multiples, layouts, options.integer("rounds", 7));
    return 0;
  }
  for (const ProductSize& size : sizes) compare(size, layouts, options.integer("rounds", 7));
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
