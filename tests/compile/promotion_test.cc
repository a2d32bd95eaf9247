// Mixed dtypes inside a region: the casts that eager execution makes, and its bits (runtime/ops/promotion.h).
#include "rondo/runtime/op/amp.h"
#include "rondo/tests/compile/block_fixture.h"

namespace rondo {
namespace {

using namespace test;

class PromotionRegions : public BlockTest {};

constexpr DType kFloats[] = {kF64, kF32, kBF16, kF16};
constexpr DType kAll[] = {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool};

TEST_F(PromotionRegions, EveryPairOfDtypes) {
  for (DType a : kAll) {
    for (DType b : kAll) {
      SCOPED_TRACE(std::string(name_of(a)) + " " + std::string(name_of(b)));
      const auto body = [=](Block&, const Tensor& x) {
        const Tensor p = (x * 3.0 + 5.0).to(a), q = (x + 9.0).to(b);
        Tensors results = {p + q,
                           p * q,
                           p / q,
                           ops::maximum(p, q),
                           ops::less(p, q),
                           ops::where(ops::less(x, 0.0 * x), p, q),
                           2.5 * p,
                           p / 3,
                           ops::cat(Tensors{p, q}, 0)};
        if (a != kBool) results.push_back(p + 2);
        results.push_back(ops::sum(p, {-1}));
        if (is_floating(a)) results.push_back(ops::mean(p, {-1}));
        return results;
      };
      expect_as_eager(body, [](Block& block) { return train_step(block, input()); });
    }
  }
}

TEST_F(PromotionRegions, InPlaceRoundsOnce) {
  for (DType a : kFloats) {
    for (DType b : kAll) {
      SCOPED_TRACE(std::string(name_of(a)) + " " + std::string(name_of(b)));
      const auto body = [=](Block&, const Tensor& x) {
        Tensor p = (x * 300.0).to(a);
        const Tensor q = (x + 9.0).to(b);
        p.mul_(q);
        p.slice(0, {0, 2}).add_(q.slice(0, {1, 3}));
        return Tensors{p};
      };
      expect_as_eager(body, [](Block& block) { return train_step(block, input()); });
    }
  }
}

TEST_F(PromotionRegions, MeansOfNarrowFloatsAreWide) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor y = (x * 1e4).to(kF16);
    return Tensors{ops::mean(y, {0}), ops::mean(y, {1}), ops::mean(y)};
  };
  expect_as_eager(body, [](Block& block) { return train_step(block, input({64, 6})); });
}

}  // namespace
}  // namespace rondo
