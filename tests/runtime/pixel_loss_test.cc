// pixel_cross_entropy against cross_entropy(interpolate(...)): the same numbers, in less memory.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/pixel_loss.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of, test::same_bits;

constexpr int64_t kIgnored = 255;

Tensor whole_loss(const Tensor& logits, const Tensor& target) {
  const Tensor full = ops::interpolate(logits, {target.size(1), target.size(2)},
                                       {.mode = ops::InterpolateMode::kBilinear});
  return ops::cross_entropy(full.permute({0, 2, 3, 1}).reshape({target.numel(), logits.size(1)}),
                            target.reshape({target.numel()}), {.ignore_index = kIgnored});
}
// Random classes below `classes`; every seventh pixel is ignored.
Tensor some_target(const Dims& sizes, int64_t classes) {
  std::vector<int64_t> values = Tensor::randint(0, classes, sizes).to_vector<int64_t>();
  for (size_t i = 0; i < values.size(); i += 7) values[i] = kIgnored;
  return Tensor::from(values, sizes);
}
struct Result {
  Tensor loss, grad;
};
Result result_of(Tensor (*loss_of)(const Tensor&, const Tensor&), const Tensor& logits, const Tensor& target) {
  const Tensor x = logits.detach().clone().requires_grad_();
  const Tensor loss = loss_of(x, target);
  loss.backward();
  return {loss.detach(), x.grad()};
}
Tensor pixel_loss(const Tensor& logits, const Tensor& target) {
  return ops::pixel_cross_entropy(logits, target, kIgnored);
}

TEST(PixelLoss, IsTheLossOfInterpolatedLogits) {
  manual_seed(3);
  struct Case {
    Dims logits, target;
  };
  for (const Case& c : {Case{{2, 19, 8, 16}, {2, 64, 128}}, Case{{1, 5, 3, 7}, {1, 10, 71}},
                        Case{{2, 4, 9, 9}, {2, 4, 3}}, Case{{1, 3, 1, 1}, {1, 5, 66}}}) {
    SCOPED_TRACE(to_string(c.target));
    const Tensor target = some_target(c.target, c.logits[1]);
    const Tensor logits = Tensor::randn(c.logits).to(kF64);
    const Result want = result_of(&whole_loss, logits, target), got = result_of(&pixel_loss, logits, target);
    EXPECT_NEAR(got.loss.item(), want.loss.item(), 1e-14);
    EXPECT_LT((got.grad - want.grad).abs().max().item(), 1e-15);
    const Result low = result_of(&pixel_loss, logits.to(kF32), target);
    EXPECT_NEAR(low.loss.item(), want.loss.item(), 2e-6);
    EXPECT_LT((low.grad.to(kF64) - want.grad).abs().max().item(), 1e-7);
    // Neither the number of threads nor the layout changes a bit.
    const int threads = num_threads();
    set_num_threads(1);
    const Result alone = result_of(&pixel_loss, logits.to(kF32), target);
    set_num_threads(threads);
    EXPECT_TRUE(same_bits(alone.loss, low.loss) && same_bits(alone.grad, low.grad));
    const Tensor last = logits.to(kF32).permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    EXPECT_TRUE(same_bits(pixel_loss(last, target), low.loss));
  }
}

TEST(PixelLoss, PixelsThatAreIgnoredCountNothing) {
  const Tensor target = Tensor::from<int64_t>({0, kIgnored, 1, kIgnored}, {1, 1, 4});
  Tensor x = Tensor::from({1.f, NAN, 2.f, NAN, 3.f, NAN, 4.f, NAN}, {1, 2, 1, 4}).requires_grad_();
  const Tensor loss = pixel_loss(x, target);
  EXPECT_NEAR(loss.item(), (std::log1p(std::exp(2.0)) + std::log1p(std::exp(-2.0))) / 2, 1e-6);
  loss.backward();
  EXPECT_EQ(x.grad().select(3, 1).abs().max().item(), 0);
  EXPECT_TRUE(std::isnan(pixel_loss(x, Tensor::full({1, 1, 4}, kIgnored, {kI64})).item()));
}

// As a class that is masked out: interpolation by a weight of 0 would make NaN of it.
TEST(PixelLoss, InfiniteLogitsOfTheSizeOfTheTarget) {
  const Tensor x = Tensor::from({0.f, -INFINITY, 0.f, 0.f, -INFINITY, 0.f, 0.f, 0.f}, {1, 2, 2, 2});
  const Tensor target = Tensor::from<int64_t>({0, 1, 1, 0}, {1, 2, 2});
  const Result got = result_of(&pixel_loss, x, target), want = result_of(&whole_loss, x, target);
  EXPECT_NEAR(got.loss.item(), std::log(2.0) / 2, 1e-7);
  EXPECT_LT((got.grad - want.grad).abs().max().item(), 1e-7);
}

TEST(PixelLoss, NeedsAFractionOfTheMemory) {
  if (default_device() != kCPU) GTEST_SKIP() << "the report is of the host's memory";
  const Tensor logits = Tensor::randn({1, 19, 32, 64}), target = some_target({1, 256, 512}, 19);
  const auto workspace = [&](Tensor (*loss_of)(const Tensor&, const Tensor&)) {
    memory::trim();
    const memory::Recording recording;
    result_of(loss_of, logits, target);
    return recording.report().in_use();
  };
  EXPECT_LT(4 * workspace(&pixel_loss), workspace(&whole_loss));
}

TEST(PixelLoss, IsF32UnderAutocast) {
  const Tensor logits = Tensor::randn({1, 3, 2, 2}).to(kBF16), target = some_target({1, 4, 4}, 3);
  const amp::Autocast lower(kBF16);
  EXPECT_EQ(pixel_loss(logits, target).dtype(), kF32);
}

TEST(PixelLoss, RefusesWhatDoesNotFit) {
  const Tensor x = Tensor::ones({2, 3, 2, 2});
  const auto error = [&](const Tensor& logits, const Tensor& target) {
    return error_of([&] { ops::pixel_cross_entropy(logits, target); });
  };
  EXPECT_NE(error(x, Tensor::zeros({1, 4, 4}, {kI64})).find("target must be i64 or i32 (B, H, W)"), std::string::npos);
  EXPECT_NE(error(x, Tensor::zeros({2, 4}, {kI64})).find("[2, 4]"), std::string::npos);
  EXPECT_NE(error(x.select(0, 0), Tensor::zeros({2, 4, 4}, {kI64})).find("(B, C, h, w)"), std::string::npos);
  EXPECT_NE(error(x, Tensor::zeros({2, 4, 4})).find("i64 or i32"), std::string::npos);
  const std::string bad = error(x, Tensor::full({2, 1, 2}, 3, {kI64}));
  EXPECT_NE(bad.find("out of range for size 3"), std::string::npos) << bad;
}

}  // namespace
}  // namespace rondo
