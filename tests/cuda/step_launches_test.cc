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
    EXPECT_GE(launches.per_step, launches.options.model.n_layer * launches.per_block) << table;
  }
}

}  // namespace
}  // namespace rondo
