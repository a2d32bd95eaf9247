// A tensor and a number in comparisons and selections: dtypes and values as PyTorch has them
// (tests/reference/numbers.txt), where a region records them too; gradients; and what Rondo refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/numbers.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using namespace test;

DType dtype_named(const std::string& name) {
  for (DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    if (name == name_of(dtype)) return dtype;
  throw InternalError("no dtype: " + name);
}
Scalar number_named(const std::string& text) {
  if (text == "true") return true;
  const bool real = text.find_first_not_of("-0123456789") != std::string::npos;
  return real ? Scalar(std::stod(text)) : Scalar(static_cast<int64_t>(std::stoll(text)));
}
// Integers by way of i64, so that those beyond 2^53 are exact.
Tensor tensor_of(std::istringstream& text, DType dtype) {
  std::vector<int64_t> integers;
  std::vector<double> floats;
  for (std::string word; text >> word;)
    if (is_floating(dtype)) floats.push_back(std::stod(word));
    else integers.push_back(std::stoll(word));
  return is_floating(dtype) ? Tensor::from(floats, {std::ssize(floats)}).to(dtype)
                            : Tensor::from(integers, {std::ssize(integers)}).to(dtype);
}

TEST(Numbers, EqualPyTorch) {
  std::ifstream file(std::string(tests::kReferenceDir) + "/numbers.txt");
  ASSERT_TRUE(file.is_open());
  Tensor x;
  int results = 0;
  for (std::string line; std::getline(file, line);) {
    SCOPED_TRACE((x.defined() ? std::string(name_of(x.dtype())) : "") + " " + line);
    std::istringstream head(line.substr(0, line.find(':'))), values(line.substr(line.find(':') + 1));
    std::string op, number, dtype;
    head >> op >> number;
    if (number.empty()) {
      x = tensor_of(values, dtype_named(op));
      continue;
    }
    ++results;
    values >> dtype;
    const Scalar s = number_named(number);
    if (dtype == "error") {
      EXPECT_NE(error_of([&] { apply_number(op, x, s); }), "");
      continue;
    }
    const Tensor got = apply_number(op, x, s);
    ASSERT_EQ(got.dtype(), dtype_named(dtype));
    EXPECT_TRUE(same_bits(got, tensor_of(values, got.dtype())));
  }
  EXPECT_EQ(results, 341);
}

// PyTorch wraps 300 to 44 for u8 without a word. Here comparisons are right, and what would have to keep it is an
// error.
TEST(Numbers, BeyondTheDtypeOfATensor) {
  const Tensor bytes = Tensor::from<int64_t>({0, 44, 255}, {3}).to(kU8);
  for (const char* op : {"less", "less_equal", "not_equal"})
    EXPECT_EQ(apply_number(op, bytes, 300).to_vector<bool>(), std::vector<bool>({true, true, true})) << op;
  for (const char* op : {"greater", "greater_equal", "not_equal"})
    EXPECT_EQ(apply_number(op, bytes, -1).to_vector<bool>(), std::vector<bool>({true, true, true})) << op;
  for (const char* op : {"maximum", "minimum", "where", "where_not"}) {
    const std::string name = op == std::string("where_not") ? "where" : op;
    EXPECT_NE(error_of([&] { apply_number(op, bytes, 300); }).find(name + ": 300 does not fit into u8"),
              std::string::npos);
  }
  EXPECT_NE(error_of([&] { apply_number("masked_fill", bytes, 300); }).find("masked_fill: the value 300"),
            std::string::npos);
  EXPECT_EQ(apply_number("masked_fill", bytes, -1).to_vector<int64_t>(), std::vector<int64_t>({255, 44, 255}));
}

// A condition and two numbers, of any kinds; integers that no double holds; the condition may be 0-dim.
TEST(Numbers, ChosenByACondition) {
  const Tensor mask = Tensor::from<int64_t>({1, 0}, {2}).to(kBool);
  EXPECT_TRUE(same_bits(ops::where(mask, 0.0, -INFINITY), Tensor::from<float>({0.0f, -INFINITY}, {2})));
  EXPECT_TRUE(same_bits(ops::where(mask, 1, 2.5), Tensor::from<float>({1, 2.5f}, {2})));
  EXPECT_TRUE(same_bits(ops::where(mask, true, 7), Tensor::from<int64_t>({1, 7}, {2})));
  EXPECT_EQ(ops::where(mask, true, false).dtype(), kBool);
  EXPECT_TRUE(
      same_bits(ops::where(mask, INT64_MAX, INT64_MIN + 1), Tensor::from<int64_t>({INT64_MAX, INT64_MIN + 1}, {2})));
  EXPECT_TRUE(same_bits(ops::where(mask.select(0, 1), 1, 2), Tensor::full({}, 2, {kI64})));
}

// Half of the gradient goes to an element that equals the number, as between two tensors.
TEST(Numbers, GradientsOfTies) {
  for (DType dtype : {kF32, kBF16}) {
    Tensor x = Tensor::from<float>({-1, 0.5f, 2, NAN}, {4}).to(dtype).requires_grad_();
    const auto gradient = [&](const Tensor& y) {
      x.zero_grad();
      ops::sum(y).backward();
      return x.grad().to_vector<double>();
    };
    EXPECT_EQ(gradient(ops::maximum(x, 0.5)), std::vector<double>({0, 0.5, 1, 1}));
    EXPECT_EQ(gradient(ops::minimum(x, 0.5)), std::vector<double>({1, 0.5, 0, 1}));
    EXPECT_EQ(gradient(ops::where(x > 0.5, x, 3.0)), std::vector<double>({0, 0, 1, 0}));
    EXPECT_EQ(gradient(ops::masked_fill(x, x > 0.5, 3.0)), std::vector<double>({1, 1, 0, 1}));
  }
}

}  // namespace
}  // namespace rondo
