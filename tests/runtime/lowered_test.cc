// The 16-bit copies of parameters that autocast uses.
#include <gtest/gtest.h>

#include <thread>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/lowered.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;

Tensor parameter(Dims sizes) { return Tensor::randn(sizes).requires_grad_(); }

TEST(Lowered, IsConvertedOnceForAVersion) {
  Tensor w = parameter({5, 7});
  const Tensor first = amp::lowered(w, kBF16), second = amp::lowered(w, kBF16);
  EXPECT_EQ(first.address(), second.address());
  EXPECT_TRUE(same_bits(first, ops::cast(w.detach(), kBF16)));
  EXPECT_FALSE(first.requires_grad());
  no_grad([&] { w.mul_(3.0); });
  const Tensor third = amp::lowered(w, kBF16);
  EXPECT_TRUE(same_bits(third, ops::cast(w.detach(), kBF16)));
  EXPECT_FALSE(same_bits(third, first)) << "what others hold is left alone";
  EXPECT_TRUE(same_bits(amp::lowered(w, kF16), ops::cast(w.detach(), kF16)));
  EXPECT_TRUE(same_bits(amp::lowered(w, kBF16), third));
}

TEST(Lowered, TakesItsOwnMemoryAgain) {
  Tensor w = parameter({64, 64});
  const void* at = amp::lowered(w, kBF16).address();
  no_grad([&] { w.add_(1.0); });
  EXPECT_EQ(amp::lowered(w, kBF16).address(), at);
}

TEST(Lowered, OnlyWholeParametersKeepOne) {
  const Tensor w = parameter({6, 4});
  EXPECT_TRUE(amp::keeps_copy(w));
  const Tensor constant = Tensor::randn({6, 4}), wide = Tensor::zeros({3}, {kF64}).requires_grad_();
  for (const Tensor& other : {constant, w * 2.0, w.detach().slice(0, {1, 3}).requires_grad_(), wide}) {
    EXPECT_FALSE(amp::keeps_copy(other));
    EXPECT_TRUE(same_bits(amp::lowered(other, kBF16), ops::cast(other.detach(), kBF16)));
    EXPECT_EQ(amp::copy_in_use(other), std::nullopt);
  }
  EXPECT_EQ(amp::copy_in_use(w), std::nullopt);
  amp::lowered(w, kF16);
  EXPECT_EQ(amp::copy_in_use(w), kF16);
}

// As if each use had cast the parameter for itself.
TEST(Lowered, AutocastGivesTheBitsOfACastAtEachUse) {
  for (const DType dtype : {kBF16, kF16}) {
    Tensor w = parameter({9, 16}), b = parameter({9}), x = parameter({4, 16});
    const auto gradients = [&](const Tensor& loss) {
      for (Tensor* t : {&w, &b, &x}) t->zero_grad();
      loss.backward();
      return std::vector<Tensor>{w.grad(), b.grad(), x.grad()};
    };
    for (int round = 0; round < 3; ++round) {
      Tensor cast = ops::sum(ops::square(
          ops::linear(ops::linear(x.to(dtype), w.to(dtype), b.to(dtype)), w.to(dtype).t(), Tensor()).to(kF32)));
      const std::vector<Tensor> expected = gradients(cast);
      Tensor loss;
      {
        const amp::Autocast lower(dtype);
        loss = ops::sum(ops::square(ops::linear(ops::linear(x, w, b), w.t(), Tensor()).to(kF32)));
      }
      EXPECT_TRUE(same_bits(loss.detach(), cast.detach()));
      const std::vector<Tensor> got = gradients(loss);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].dtype(), kF32);
        EXPECT_TRUE(same_bits(got[i], expected[i])) << i;
      }
      no_grad([&] { w.add_(0.25); });
    }
  }
}

// Autocast multiplied with the old values: what is written to the parameter later is no matter.
TEST(Lowered, ATapeKeepsTheCopyThatItUsed) {
  Tensor w = parameter({3, 8}), x = parameter({2, 8});
  const Tensor before = ops::cast(w.detach(), kBF16);
  Tensor y;
  {
    const amp::Autocast lower(kBF16);
    y = ops::sum(ops::linear(x, w, Tensor()).to(kF32));
  }
  no_grad([&] { w.fill_(100.0); });
  amp::lowered(w, kBF16);
  y.backward();
  const Tensor expected = ops::matmul(Tensor::ones({2, 3}, {kBF16}), before).to(kF32);
  EXPECT_TRUE(same_bits(x.grad(), expected));
}

TEST(Lowered, WhoeverWritesTheParameterMayWriteItsCopy) {
  Tensor w = parameter({40});
  amp::lowered(w, kBF16);
  Tensor next = amp::copy_to_write(w, kBF16);
  no_grad([&] {
    w.mul_(2.0);
    next.copy_(w.detach());
  });
  amp::set_copy(w, next);
  EXPECT_EQ(amp::copy_in_use(w), std::nullopt) << "nobody has used this one";
  EXPECT_EQ(amp::lowered(w, kBF16).address(), next.address());
  EXPECT_EQ(amp::copy_in_use(w), kBF16);
  // While somebody reads the copy, another memory is written.
  EXPECT_NE(amp::copy_to_write(w, kBF16).address(), next.address());
}

TEST(Lowered, ThreadsShareOneConversion) {
  for (int round = 0; round < 20; ++round) {
    const Tensor w = parameter({257});
    const Tensor expected = ops::cast(w.detach(), kBF16);
    std::vector<std::thread> threads;
    std::vector<Tensor> got(4);
    for (Tensor& result : got) threads.emplace_back([&] { result = amp::lowered(w, kBF16); });
    for (std::thread& thread : threads) thread.join();
    for (const Tensor& result : got) {
      EXPECT_EQ(result.address(), got[0].address());
      EXPECT_TRUE(same_bits(result, expected));
    }
  }
}

}  // namespace
}  // namespace rondo
