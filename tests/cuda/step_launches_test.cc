// Launches of a training step of GPT-2 124M, counted at its real sizes, and what it trains on.
#include "rondo/tests/cuda/step_launches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace rondo {
namespace {

using test::LaunchCount;
using test::StepLaunches;

int64_t launches_of(const StepLaunches& launches, const std::string& name) {
  const auto found = std::find_if(launches.launches.begin(), launches.launches.end(),
                                  [&](const LaunchCount& launch) { return launch.name == name; });
  return found == launches.launches.end() ? 0 : found->step;
}

TEST(StepLaunches, OfGPT2) {
  for (const DType dtype : {kBF16, kF32}) {
    const StepLaunches launches = test::step_launches({.dtype = dtype});
    const std::string table = test::to_markdown(launches);
    std::printf("%s\n", table.c_str());
    // AdamW over 148 tensors is one pass; in mixed precision one more, over those that products do not read.
    EXPECT_EQ(launches_of(launches, "rondo_adamw"), dtype == kBF16 ? 2 : 1) << table;
    // All blocks launch the same.
    EXPECT_EQ(launches_of(launches, "rondo_gelu_tanh"), launches.options.model.n_layer) << table;
    EXPECT_LE(launches.per_block, 24) << table;
    EXPECT_LE(launches.per_step, 310) << table;
    EXPECT_GE(launches.per_step, launches.options.model.n_layer * launches.per_block) << table;
  }
}

// A step has 4096 tokens: some 6% are the most frequent one, and some 2,000 ids come up. Equal ids and equally likely
// ones are far from both.
TEST(StepLaunches, TokensFollowZipfsLaw) {
  const test::StepOptions options;
  const int64_t V = options.model.vocab_size;
  std::vector<int64_t> counts(static_cast<size_t>(V), 0);
  constexpr int kSteps = 50;
  int64_t ids = 0, all = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int64_t> tokens = test::step_tokens(options, step);
    ASSERT_EQ(tokens.size(), 4096u);
    for (const int64_t token : tokens) ++counts.at(static_cast<size_t>(token)), ++all;
    EXPECT_EQ(tokens, test::step_tokens(options, step));
    EXPECT_NE(tokens, test::step_tokens(options, step + 1));
    std::sort(tokens.begin(), tokens.end());
    ids += std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  }
  // How often the ids from `first` to `last`, counted from 1, were drawn.
  const auto seen = [&](int64_t first, int64_t last) {
    int64_t sum = 0;
    for (int64_t k = first; k <= last; ++k) sum += counts[static_cast<size_t>(k - 1)];
    return static_cast<double>(sum) / static_cast<double>(all);
  };
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>(1, 1), {2, 2}, {10, 19}, {100, 999}, {1000, V}}) {
    const double expected = std::log(static_cast<double>(last + 1) / static_cast<double>(first)) /
                            std::log(static_cast<double>(V + 1));
    EXPECT_NEAR(seen(first, last), expected, 0.005) << first;
  }
  EXPECT_NEAR(static_cast<double>(ids) / kSteps, 2000, 100);
}

// A larger batch adds no launches but those of a second chunk of logits, and of a sort of more tokens. One of the 301
// is the combine of a sum over the batch (of the gradients of positions), which has one chunk and could do without.
TEST(StepLaunches, OfLargerBatches) {
  for (const DType dtype : {kBF16, kF32})
    for (const auto& [batch, most] : {std::pair(int64_t{4}, int64_t{301}), {8, 310}, {16, 310}}) {
      const StepLaunches launches = test::step_launches({.dtype = dtype, .batch = batch});
      std::printf("%s, %lld x 1024: %lld launches\n", name_of(dtype).data(), static_cast<long long>(batch),
                  static_cast<long long>(launches.per_step));
      EXPECT_LE(launches.per_step, most) << test::to_markdown(launches);
    }
}

#ifndef __SANITIZE_THREAD__  // counting is no part of what TSan may see
TEST(StepLaunches, KernelsReadAndWriteOnce) {
  for (const DType dtype : {kBF16, kF32}) {
    const test::StepBytes bytes = test::step_bytes({.dtype = dtype});
    const std::string table = test::to_markdown(bytes);
    std::printf("%s\n", table.c_str());
    EXPECT_LE(static_cast<double>(bytes.moved), 1.1 * static_cast<double>(bytes.ideal)) << table;
  }
}

// Bytes are extended from shorter sequences and fewer layers as a step of that size counts them.
TEST(StepLaunches, BytesOfASmallerStepAreWhatIsCounted) {
  const test::StepOptions options{
      .dtype = kBF16,
      .batch = 1,
      .model = {.vocab_size = 1000, .block_size = 192, .n_layer = 3, .n_head = 2, .n_embd = 128, .whole_logits = 0}};
  const test::StepBytes predicted = test::step_bytes(options), counted = test::counted_step_bytes(options);
  const std::string tables = test::to_markdown(predicted) + test::to_markdown(counted);
  EXPECT_EQ(predicted.kernels.size(), counted.kernels.size()) << tables;
  for (const auto& [name, bytes] : counted.kernels) {
    const auto found = predicted.kernels.find(name);
    ASSERT_TRUE(found != predicted.kernels.end()) << name;
    EXPECT_EQ(found->second.launches, bytes.launches) << name;
    // The count takes keys for an operand of one row, which fits into the first cache: in packed qkv, values follow it.
    const double nearly = name.starts_with("rondo_attention") ? 0.01 * static_cast<double>(bytes.moved) : 0;
    EXPECT_NEAR(static_cast<double>(found->second.moved), static_cast<double>(bytes.moved), nearly) << name << tables;
    EXPECT_EQ(found->second.touched, bytes.touched) << name << tables;
    EXPECT_EQ(found->second.ideal, bytes.ideal) << name << tables;
  }
}
#endif

}  // namespace
}  // namespace rondo
