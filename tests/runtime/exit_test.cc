// Ops that run while the process ends, in destructors of global objects: the main thread's thread_local objects are
// gone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

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

// Products and convolutions in f32 and bf16 whose sums are exact, and their gradients, against f64, which does not run
// in oneDNN. `size`: for shapes that no other call has.
bool are_right(int64_t size) {
  const auto numbers = [](const Dims& sizes, DType dtype) {
    std::vector<double> values(static_cast<size_t>(sizes.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 7 % 3) - 1;
    return Tensor::from(values, sizes, dtype).requires_grad_();
  };
  const auto results = [&](DType dtype) {
    const Tensor image = numbers({2, 3, size, 8}, dtype), weight = numbers({16, 3, 3, 3}, dtype),
                 left = numbers({30, size}, dtype), right = numbers({size, 40}, dtype);
    const Tensor convolved = ops::conv2d(image, weight, {}, {.padding = {1, 1}}), multiplied = ops::matmul(left, right);
    for (const Tensor& y : {convolved, multiplied}) y.backward(Tensor::full(y.sizes(), 1, dtype));
    return std::vector<Tensor>{convolved.detach(), multiplied.detach(), image.grad(),
                               weight.grad(),      left.grad(),         right.grad()};
  };
  const std::vector<Tensor> wanted = results(kF64);
  for (const DType dtype : {kF32, kBF16}) {
    const std::vector<Tensor> got = results(dtype);
    for (size_t i = 0; i < got.size(); ++i)
      if (!same_bits(got[i].to(kF64).contiguous(), wanted[i].contiguous())) return false;
  }
  return true;
}

// oneDNN makes what it keeps in static variables after main() has registered this. A process of its own: there, no
// other test has made it before.
TEST(ExitDeathTest, NewShapesAfterMain) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(60);
        std::atexit([] { _exit(are_right(11) ? 7 : 1); });
        if (are_right(9)) std::exit(2);
        _exit(3);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace rondo
