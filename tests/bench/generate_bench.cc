// bench_generate: tokens a second of greedy decoding, GPT-2's architecture with random weights, and which share of the
// machine's memory stream that is.
//
//   bench_generate --dtype=bf16 --prompt=64 --new_tokens=64 --batch=1 --threads=2 [--compile=MODE] [--json]
//   bench_generate --compile=default --paired ...  compiled and eager tokens in turns, medians
//   bench_generate --serve ...     answers each line "N" with the best of N runs (tests/bench/peers/README.md)
//
// Bytes of a token: each weight that a token reads once (of wte the output layer's read, of wpe one row), and the keys
// and values of all tokens before it. The stream is measured in the same run: the best (in turns: the median) of
// several reads of 256 MiB by the same threads, by plain loads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double>& times) {
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Adds the seconds of some reads of the memory.
void stream(const std::vector<int64_t>& memory, std::vector<double>& times) {
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    std::vector<int64_t> sums(64, 0);
    parallel_for(64, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const auto n = static_cast<int64_t>(memory.size()) / 64;
        int64_t sum = 0;
        for (const int64_t* at = memory.data() + part * n; at < memory.data() + (part + 1) * n; ++at) sum += *at;
        sums[static_cast<size_t>(part)] = sum;
      }
    });
    for (const int64_t sum : sums)
      if (sum == 42) std::printf(" ");
    times.push_back(seconds_since(start));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  const int64_t prompt = options.integer("prompt", 64), more = options.integer("new_tokens", 64),
                B = options.integer("batch", 1), rounds = options.integer("rounds", 3);
  const DType dtype = options.text("dtype", "f32") == "bf16" ? kBF16 : kF32;
  set_num_threads(static_cast<int>(options.integer("threads", 2)));
  const auto flag = [&](const char* name) { return std::find(argv, argv + argc, std::string(name)) != argv + argc; };
  const bool serves = flag("--serve"), json = serves || flag("--json");
  nn::GPT2 model({.vocab_size = options.integer("vocab_size", 50257),
                  .block_size = options.integer("block_size", 1024),
                  .n_layer = options.integer("n_layer", 12),
                  .n_head = options.integer("n_head", 12),
                  .n_embd = options.integer("n_embd", 768)});
  model.to(dtype);
  model.requires_grad_(false);
  const std::vector<int64_t> memory((256 << 20) / sizeof(int64_t), 1);

  const auto element = static_cast<double>(size_of(dtype));
  const double weights = static_cast<double>(model.num_parameters() - model.wpe.weight.numel()) * element;
  const double a_cached_token = 2.0 * static_cast<double>(model.config.n_layer * model.config.n_embd * B) * element;
  const double bytes = weights + a_cached_token * (static_cast<double>(prompt) + static_cast<double>(more) / 2);

  std::vector<int64_t> tokens(static_cast<size_t>(prompt));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int64_t>(i * 7919 % 50000) % model.config.vocab_size;
  const std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(B), tokens);
  const bool paired = flag("--paired");
  std::optional<compile::Regions> regions;
  if (options.has("compile"))
    for (const compile::Mode mode : compile::kModes)
      if (compile::name_of(mode) == options.text("compile", ""))
        regions = compile::compile_regions(model, {.exact = flag("--exact"), .mode = mode});
  if (options.has("compile") && !regions) throw Error("--compile is none of the modes of compile::Mode");

  // Times of single tokens, in turns if `paired`: what else the machine does meets both alike.
  struct Times {
    const char* how;
    std::vector<double> tokens = {};
  };
  double best_prompt = 1e9;
  // The mean of its tokens, in seconds.
  const auto generate = [&](std::vector<Times>& all) {
    Clock::time_point last = Clock::now(), first;
    int64_t made = 0;
    nn::generate(model, prompts, {.max_new_tokens = more + 1, .temperature = 0, .on_token = [&](int64_t row, int64_t) {
                                    if (row < B - 1) return true;
                                    const double seconds = seconds_since(last);
                                    if (made > 0) all[static_cast<size_t>(made) % all.size()].tokens.push_back(seconds);
                                    else best_prompt = std::min(best_prompt, seconds), first = Clock::now();
                                    ++made;
                                    compile::set_stance(static_cast<size_t>(made) % all.size() > 0
                                                            ? compile::Stance::kForceEager
                                                            : compile::Stance::kDefault);
                                    last = Clock::now();
                                    return true;
                                  }});
    compile::set_stance(compile::Stance::kDefault);
    return seconds_since(first) / static_cast<double>(more);
  };
  const auto run = [&](int64_t repeats) {
    double best_token = 1e9;
    std::vector<double> reads;
    std::vector<Times> all = {{regions ? "compiled" : "eager"}}, warm_up = all;
    if (paired) all.push_back({"eager"});
    if (regions) generate(warm_up);  // compiles
    for (int64_t i = 0; i < std::max<int64_t>(1, repeats); ++i) {
      stream(memory, reads);
      best_token = std::min(best_token, generate(all));
    }
    const double seconds = paired ? median(reads) : *std::min_element(reads.begin(), reads.end());
    const double speed = static_cast<double>(memory.size() * sizeof(int64_t)) / seconds;  // bytes a second
    for (Times& times : all) {
      const double token = paired ? median(times.tokens) : best_token;
      std::printf(json
                      ? "{\"peer\": \"rondo\", \"dtype\": \"%s\", \"how\": \"%s\", \"tokens_per_s\": %.2f, "
                        "\"ms_per_token\": %.4f, \"prompt_ms\": %.2f, \"stream_gb_per_s\": %.2f, \"mb_per_token\": "
                        "%.1f, \"share\": %.3f}\n"
                      : "%s, %s: %.1f tokens/s (%.3f ms each, prompt %.1f ms); stream %.1f GB/s, %.0f MB a token: %.3f "
                        "of the stream\n",
                  std::string(name_of(dtype)).c_str(), times.how, static_cast<double>(B) / token, token * 1e3,
                  best_prompt * 1e3, speed / 1e9, bytes / 1e6, bytes / speed / token);
    }
    if (regions && !json) std::printf("%s\n", regions->summary().c_str());
    std::fflush(stdout);
  };
  if (!serves) {
    run(rounds);
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) run(bench::whole_number(line));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_generate: %s\n", error.what());
  return 1;
}
