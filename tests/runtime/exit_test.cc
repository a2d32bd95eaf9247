// Ops that run while the process ends, in destructors of global objects: the main thread's thread_local objects are
// gone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;

Tensor a, q, product, attended;

void compute() {
  product = ops::matmul(a, a);
  attended = ops::scaled_dot_product_attention(q, q, q, {}, {.causal = true});
}

TEST(ExitDeathTest, OpsAfterMain) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  EXPECT_EXIT(
      {
        std::atexit([] {
          const Tensor product_before = product, attended_before = attended;
          compute();
          _exit(same_bits(product, product_before) && same_bits(attended, attended_before) ? 7 : 1);
        });
        a = Tensor::randn({64, 64});
        q = Tensor::randn({1, 2, 70, 16});
        compute();
        std::exit(1);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace rondo
