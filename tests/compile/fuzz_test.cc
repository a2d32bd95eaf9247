// Random programs, compiled against eager (tests/fuzz/). tests/fuzz/run.sh runs many more.
#include <gtest/gtest.h>

#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/storage.h"
#include "rondo/tests/fuzz/fuzz.h"

namespace rondo {
namespace {

class Fuzz : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
  static void try_seeds(uint64_t from, uint64_t count, bool default_mode) {
    fuzz::FuzzOptions options;
    options.generate.max_steps = 10;
    options.check.default_mode = default_mode;
    for (uint64_t seed = from; seed < from + count; ++seed) {
      const std::string what = fuzz::try_seed(seed, options);
      EXPECT_TRUE(what.empty()) << what;
    }
  }
};

TEST_F(Fuzz, ExactModeIsEagerInEveryBit) { try_seeds(0, 240, false); }
TEST_F(Fuzz, DefaultModeIsCloseAndRunsAsManyKernels) { try_seeds(1000, 60, true); }

}  // namespace
}  // namespace rondo
