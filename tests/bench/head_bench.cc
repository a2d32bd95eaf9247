// bench_head: an output layer and its loss, forward and backward, with whole logits and in chunks of rows, at GPT-2's
// size.
//
//   bench_head --rows=4096 --dtype=bf16 --chunks=0,128,256,512,1024      (0: what linear_cross_entropy chooses by
//   itself)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;
using Clock = std::chrono::steady_clock;

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  const int64_t N = options.integer("rows", 256), C = options.integer("n_embd", 768),
                V = options.integer("vocab_size", 50257), rounds = options.integer("rounds", 5);
  const bool lower = options.text("dtype", "f32") == "bf16";
  Tensor x = Tensor::randn({N, C}), weight = (Tensor::randn({V, C}) * 0.02);
  x.requires_grad_();
  weight.requires_grad_();
  const Tensor target = Tensor::randint(0, V, {N});
  std::vector<int64_t> chunks = {-1};  // whole logits
  for (const auto& text : absl::StrSplit(options.text("chunks", "0,64,128,256,512,1024"), ','))
    chunks.push_back(bench::whole_number(std::string(text)));
  std::vector<std::vector<double>> times(chunks.size());
  std::vector<int64_t> peaks(chunks.size());
  for (int64_t round = -1; round < rounds; ++round)  // the first warms up; the others alternate
    for (size_t i = 0; i < chunks.size(); ++i) {
      weight.set_grad(Tensor());
      x.set_grad(Tensor());
      const int64_t before = allocator::stats().bytes_in_use;
      allocator::reset_peak();
      const auto start = Clock::now();
      Tensor loss;
      {
        const amp::Autocast scope(lower ? std::optional(kBF16) : std::nullopt);
        loss = chunks[i] < 0 ? ops::cross_entropy(ops::linear(x, weight, Tensor()), target)
                             : ops::linear_cross_entropy(x, weight, Tensor(), target, {.chunk_rows = chunks[i]});
      }
      loss.backward();
      if (round >= 0) times[i].push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
      peaks[i] = allocator::stats().peak_bytes - before;
    }
  for (size_t i = 0; i < chunks.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    std::printf("%-6s rows %5ld  %8.1f ms (best %.1f)  peak %.0f MB\n",
                chunks[i] < 0    ? "whole"
                : chunks[i] == 0 ? "chosen"
                                 : "chunks",
                chunks[i] > 0 ? chunks[i] : N, times[i][times[i].size() / 2], times[i][0],
                static_cast<double>(peaks[i]) / 1e6);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_head: %s\n", error.what());
  return 1;
}
