// Launches of a training step of GPT-2 124M, counted at its real sizes.
#include "rondo/tests/cuda/step_launches.h"

#include <gtest/gtest.h>

#include <algorithm>

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
    EXPECT_EQ(launches_of(launches, "rondo_adam"), dtype == kBF16 ? 2 : 1) << table;
    // All blocks launch the same.
    EXPECT_EQ(launches_of(launches, "rondo_gelu_tanh"), launches.options.model.n_layer) << table;
    EXPECT_LE(launches.per_block, 24) << table;
    EXPECT_LE(launches.per_step, 310) << table;
    EXPECT_GE(launches.per_step, launches.options.model.n_layer * launches.per_block) << table;
  }
}

#ifndef __SANITIZE_THREAD__  // counting is no part of what TSan may see
TEST(StepLaunches, KernelsReadAndWriteOnce) {
  for (const DType dtype : {kBF16, kF32}) {
    const test::StepBytes bytes = test::step_bytes(
        {.dtype = dtype,
         .batch = 1,
         .model = {.vocab_size = 256, .block_size = 16, .n_layer = 1, .n_head = 12, .n_embd = 768}});
    const std::string table = test::to_markdown(bytes);
    std::printf("%s\n", table.c_str());
    EXPECT_LE(static_cast<double>(bytes.moved), 1.1 * static_cast<double>(bytes.ideal)) << table;
  }
}
#endif

}  // namespace
}  // namespace rondo
