// Messages name what was called, not the op that does its work, and say what to call instead.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

Tensor f32(const Dims& sizes) { return Tensor::ones(sizes); }
Tensor i64(const Dims& sizes) { return Tensor::zeros(sizes, {kI64}); }
Tensor boolean(const Dims& sizes) { return Tensor::zeros(sizes, {kBool}); }

void expect_message(const std::function<void()>& mistake, const std::string& begin,
                    const std::vector<std::string>& parts) {
  const std::string text = test::error_of(mistake);
  EXPECT_TRUE(text.starts_with(begin + ":")) << "'" << text << "' is not from " << begin;
  EXPECT_NE(text.find("messages_test.cc:"), std::string::npos) << text;
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Messages, NameTheCall) {
  expect_message([] { ops::sort(boolean({3})); }, "sort", {"bool"});
  expect_message([] { ops::argsort(boolean({3})); }, "argsort", {"bool"});
  expect_message([] { ops::argmin(boolean({3})); }, "argmin", {"bool"});
  const Tensor row = f32({1, 2, 5}), kernel = f32({3, 2, 3}), none;
  expect_message([&] { ops::conv1d(row, kernel, f32({2})); }, "conv1d", {"bias"});
  expect_message([&] { ops::conv1d(row.to(kI64), kernel.to(kI64), none); }, "conv1d", {"i64"});
  const Tensor image = i64({1, 2, 5, 5}), weight = i64({2, 3, 3, 3});
  expect_message([&] { ops::conv_transpose2d(image, weight, none); }, "conv_transpose2d", {"i64"});
  expect_message([&] { ops::conv2d(image, weight.transpose(0, 1), none); }, "conv2d", {"i64"});
  // The name holds for one call.
  expect_message([&] { ops::argmax(boolean({3})); }, "argmax", {"bool"});
}

TEST(Messages, SayWhatToCallInstead) {
  expect_message([] { ops::index_select(f32({3}), 0, boolean({3})); }, "index_select",
                 {"bool[3]", "where(mask, a, b)", "masked_fill"});
  expect_message([] { ops::gather(f32({3}), 0, boolean({3})); }, "gather", {"masked_fill"});
  expect_message(
      [] {
        ops::cross_entropy(f32({2, 3, 5}), i64({2, 3}));
      },
      "cross_entropy", {"(B, T, V)", "reshape({-1, V})", "[2, 3, 5]"});
  expect_message(
      [] {
        ops::cross_entropy(f32({2, 5, 4, 4}), i64({2, 4, 4}));
      },
      "cross_entropy", {"pixel_cross_entropy", "ops/pixel_loss.h"});
  expect_message([] { ops::group_norm(f32({2, 0, 3}), 1, Tensor(), Tensor()); }, "group_norm", {"0 channels"});
  expect_message([] { f32({2, 3, 4}).t(); }, "Tensor::t", {"[2, 3, 4]", "transpose()"});
}

}  // namespace
}  // namespace rondo
