// Numbers in braces, index arguments of both integer dtypes, {} for an undefined tensor, and errors that show what the
// caller gave.
#include <gtest/gtest.h>

#include <functional>

#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::same_bits;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::string here(int line) { return "literals_test.cc:" + std::to_string(line); }

TEST(Literals, DoublesAreF32UnlessAsked) {
  const Tensor literal = Tensor::from({1., 2., 3.}, {3});
  EXPECT_EQ(literal.dtype(), kF32);
  EXPECT_EQ((Tensor::ones({3}) * literal).dtype(), kF32);
  EXPECT_EQ(Tensor::from({1, 2.5}, {2}).to_vector<float>(), (std::vector<float>{1, 2.5}));  // torch.tensor([1, 2.5])
  EXPECT_EQ(Tensor::from({0.1}, {1}).item<float>(), 0.1f);
  EXPECT_EQ(Tensor::scalar(0.5).dtype(), kF32);
  // Asked for.
  EXPECT_EQ(Tensor::from({0.1}, {1}, kF64).item(), 0.1);
  EXPECT_EQ(Tensor::from<double>({0.1}, {1}).item(), 0.1);
  EXPECT_EQ(Tensor::scalar<double>(0.1).item(), 0.1);
  EXPECT_EQ(Tensor::scalar(0.1, kF64).item(), 0.1);
  const std::vector<double> numbers = {0.1, 0.2};
  EXPECT_EQ(Tensor::from(numbers, {2}).dtype(), kF64);
  EXPECT_EQ(Tensor::from(numbers, {2}, kF32).to_vector<float>(), (std::vector<float>{0.1f, 0.2f}));
  EXPECT_EQ(Tensor::from(std::span<const double>(numbers), {2}, {kBF16, kCPU}).dtype(), kBF16);
  // Other literals keep their type.
  EXPECT_EQ(Tensor::from({1.5f, 2.f}, {2}).dtype(), kF32);
  EXPECT_EQ(Tensor::from({1, 2}, {2}).dtype(), kI32);
  EXPECT_EQ(Tensor::from({1, 2}, {2}, kI64).to_vector<int64_t>(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(Tensor::from({true, false}, {2}).dtype(), kBool);
  EXPECT_EQ(Tensor::from({1, 2}, {2}, kCPU).dtype(), kI32);
  EXPECT_EQ(Tensor::scalar(1).dtype(), kI32);
  EXPECT_EQ(Tensor::from({2., 3.}, {2}, kI64).to_vector<int64_t>(), (std::vector<int64_t>{2, 3}));
}

// Every argument that takes indices takes i32 with the bits of i64; another dtype is refused with what was given.
TEST(Literals, IndicesAreI32OrI64) {
  const Tensor table = Tensor::randn({4, 3}), row = Tensor::randn({4}), logits = Tensor::randn({2, 4});
  const Tensor x = Tensor::randn({2, 3}), q = Tensor::randn({1, 2, 2, 4}), k = Tensor::randn({1, 2, 3, 4});
  const std::vector<std::function<Tensor(const Tensor&)>> calls = {
      [&](const Tensor& i) { return ops::embedding(table, i); },
      [&](const Tensor& i) { return ops::gather(row, 0, i); },
      [&](const Tensor& i) { return ops::scatter(row, 0, i, 0.5); },
      [&](const Tensor& i) { return ops::scatter(row, 0, i, Tensor::ones({2})); },
      [&](const Tensor& i) { return ops::scatter_add(row, 0, i, Tensor::ones({2})); },
      [&](const Tensor& i) { return ops::index_select(table, 0, i); },
      [&](const Tensor& i) { return ops::cross_entropy(logits, i); },
      [&](const Tensor& i) { return ops::linear_cross_entropy(x, table, {}, i); }};
  for (size_t n = 0; n < calls.size(); ++n) {
    SCOPED_TRACE(n);
    const Tensor wide = calls[n](Tensor::from<int64_t>({3, 1}, {2}));
    EXPECT_TRUE(same_bits(wide, calls[n](Tensor::from({3, 1}, {2}))));
    const std::string error = error_of([&] { calls[n](Tensor::ones({2})); });
    EXPECT_TRUE(has(error, "f32[2]") && has(error, "i64 or i32") && has(error, "literals_test.cc:")) << error;
    EXPECT_TRUE(has(error_of([&] { calls[n]({}); }), "undefined"));
  }
  const Tensor first = Tensor::from({0, 1}, {1, 1, 2, 1});
  EXPECT_TRUE(same_bits(ops::scaled_dot_product_attention(q, k, k, first),
                        ops::scaled_dot_product_attention(q, k, k, first.to(kI64))));
  EXPECT_TRUE(same_bits(ops::plain_attention(q, k, k, first), ops::plain_attention(q, k, k, first.to(kI64))));
}

TEST(Literals, BracesAreAnUndefinedTensor) {
  const Tensor x = Tensor::randn({2, 3}), w = Tensor::randn({4, 3});
  EXPECT_TRUE(same_bits(ops::linear(x, w, {}), ops::linear(x, w, Tensor())));
  const int line = __LINE__ + 1;
  const std::string error = error_of([&] { ops::add(x, {}); });
  EXPECT_TRUE(has(error, "add: ") && has(error, "undefined tensor") && has(error, here(line))) << error;
  EXPECT_TRUE(has(error_of([&] { ops::matmul({}, x); }), "undefined"));
}

TEST(Literals, ErrorsShowTheCallersDtypes) {
  const Tensor f = Tensor::ones({2}), i = Tensor::ones({3}, kI64), b = Tensor::ones({4}, kBool);
  EXPECT_TRUE(has(error_of([&] { ops::add(f, i); }), "f32[2], i64[3]"));
  EXPECT_TRUE(has(error_of([&] { ops::add(b, b.to(kU8)[0] + i); }), "bool[4], i64[3]"));
  EXPECT_TRUE(has(error_of([&] { ops::less(i, b); }), "i64[3], bool[4]"));
  EXPECT_TRUE(has(error_of([&] { ops::div(i, Tensor::ones({2}, kI32)); }), "i64[3], i32[2]"));
  Tensor target = Tensor::ones({2});
  EXPECT_TRUE(has(error_of([&] { target += i; }), "f32[2], i64[3]"));
  const Tensor index = Tensor::ones({1}, kI32), table = Tensor::ones({4, 3});
  EXPECT_TRUE(has(error_of([&] { ops::gather(table, 0, index); }), "f32[4, 3], i32[1]"));
  EXPECT_TRUE(has(error_of([&] { ops::cross_entropy(f, index); }), "f32[2], i32[1]"));
  const amp::Autocast lower(kBF16);
  EXPECT_TRUE(has(error_of([&] { ops::matmul(table, table); }), "f32[4, 3], f32[4, 3]"));
}

TEST(Literals, FactoriesNameThemselvesAndTheLine) {
  const auto expect = [](const std::string& error, const char* name, int line) {
    EXPECT_TRUE(has(error, name) && has(error, here(line))) << error;
  };
  expect(error_of([] { Tensor::zeros({-1, 2}); }), "Tensor::zeros: negative size in [-1, 2]", __LINE__);
  expect(error_of([] { Tensor::ones({-1}); }), "Tensor::ones", __LINE__);
  expect(error_of([] { Tensor::empty({-1}); }), "Tensor::empty", __LINE__);
  expect(error_of([] { Tensor::full({-1}, 2); }), "Tensor::full", __LINE__);
  expect(error_of([] { Tensor::full({1}, 300, kU8); }), "Tensor::full", __LINE__);
  expect(error_of([] { Tensor::randn({-1}); }), "Tensor::randn", __LINE__);
  expect(error_of([] { Tensor::rand({2}, kI64); }), "Tensor::rand", __LINE__);
  expect(error_of([] { Tensor::randint(2, 2, {1}); }), "Tensor::randint", __LINE__);
  expect(error_of([] { Tensor::arange(0, 3, 0); }), "Tensor::arange", __LINE__);
  expect(error_of([] { Tensor::from({1, 2}, {3}); }), "Tensor::from: 2 values for shape [3]", __LINE__);
  expect(error_of([] { Tensor::from({1., 2.}, {-2}); }), "Tensor::from", __LINE__);
  expect(error_of([] { Tensor::from_storage({}, 0, {1}, {1}, kF32); }), "Tensor::from_storage", __LINE__);
}

}  // namespace
}  // namespace rondo
