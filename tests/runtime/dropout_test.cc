#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo {
namespace {

std::vector<float> values(const Tensor& t) { return t.to_vector<float>(); }

TEST(Dropout, KeepsTheStatedShareAndTheMean) {
  Generator generator(7);
  const int64_t n = 1 << 20;
  for (double p : {0.0, 0.1, 0.5, 0.9}) {
    double kept = 0;
    for (float v : values(ops::dropout(Tensor::ones({n}), p, &generator))) {
      if (v == 0) continue;
      EXPECT_FLOAT_EQ(v, static_cast<float>(1 / (1 - p)));
      kept += 1;
    }
    // Five standard deviations of the binomial distribution.
    EXPECT_NEAR(kept / static_cast<double>(n), 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(n))) << p;
  }
}

TEST(Dropout, DependsOnSeedAndOffsetOnly) {
  const Tensor x = Tensor::ones({3, 100003});
  std::vector<std::vector<float>> masks;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Generator generator(3);
    masks.push_back(values(ops::dropout(x, 0.3, &generator)));
    EXPECT_NE(masks.back(), values(ops::dropout(x, 0.3, &generator)));
    EXPECT_EQ(generator.offset(), 2u);
  }
  set_num_threads(2);
  EXPECT_EQ(masks[0], masks[1]);
  EXPECT_EQ(masks[0], masks[2]);
  Generator other(4), restored;
  EXPECT_NE(masks[0], values(ops::dropout(x, 0.3, &other)));
  restored.set_state(3, 0);
  EXPECT_EQ(masks[0], values(ops::dropout(x, 0.3, &restored)));
}

TEST(Dropout, AnElementsFateFollowsItsIndexNotItsLayout) {
  Generator a(1), b(1), c(1);
  const Tensor x = Tensor::ones({37, 11});
  const std::vector<float> plain = values(ops::dropout(x, 0.5, &a));
  EXPECT_EQ(plain, values(ops::dropout(Tensor::ones({11, 37}).t(), 0.5, &b)));
  EXPECT_EQ(plain, values(ops::dropout(x.to(kBF16), 0.5, &c)));
}

TEST(Dropout, TheGradientIsTheSameMask) {
  Tensor x = Tensor::ones({1000}, {kF64}).requires_grad_();
  const Tensor y = ops::dropout(x, 0.25);
  y.backward(Tensor::ones({1000}, {kF64}));
  EXPECT_EQ(x.grad().to_vector<double>(), y.to_vector<double>());
}

TEST(Dropout, DropsWhatIsNotFinite) {
  for (float v : values(ops::dropout(Tensor::full({1000}, NAN), 0.5))) EXPECT_TRUE(v == 0 || std::isnan(v));
}

// Also words of which every bit is set, the largest of all.
TEST(Dropout, AProbabilityOfOneDropsEverything) {
  Tensor x = Tensor::full({100000}, INFINITY).requires_grad_();
  const Tensor y = ops::dropout(x, 1.0);
  for (float v : values(y)) ASSERT_EQ(v, 0);
  y.backward(Tensor::ones({100000}));
  for (float v : values(x.grad())) ASSERT_EQ(v, 0);
}

TEST(Dropout, EmptyAndWrong) {
  EXPECT_EQ(ops::dropout(Tensor::zeros({0, 3}), 0.5).numel(), 0);
  EXPECT_THROW(ops::dropout(Tensor::ones({2}), 1.1), Error);
  EXPECT_THROW(ops::dropout(Tensor::ones({2}), -0.1), Error);
  EXPECT_THROW(ops::dropout(Tensor::ones({2}, {kI64}), 0.5), Error);
}

}  // namespace
}  // namespace rondo
