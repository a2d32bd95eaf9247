#include "rondo/tests/samples/make.h"

#include <cmath>
#include <limits>

#include "rondo/tests/bits.h"

namespace rondo::test::samples {

namespace {
uint64_t next_seed = 1;
}  // namespace

void start_from(uint64_t seed) { next_seed = seed; }

Tensor real(const Dims& sizes, double low, double high) { return uniform(sizes, low, high, next_seed++); }
Tensor positive(const Dims& sizes) { return real(sizes, 0.3, 3); }
Tensor halves(const Dims& sizes, double low, double high) {
  std::vector<double> values = real(sizes, low, high).to_vector<double>();
  for (double& v : values) v = std::floor(v * 2) / 2;
  return Tensor::from(values, sizes);
}
Tensor indices(const Dims& sizes, int64_t below) {
  std::vector<int64_t> values;
  for (double v : real(sizes, 0, static_cast<double>(below)).to_vector<double>())
    values.push_back(static_cast<int64_t>(v));
  return Tensor::from(values, sizes);
}
Tensor coins(const Dims& sizes) {
  const std::vector<double> values = real(sizes, 0, 1).to_vector<double>();
  Tensor t = Tensor::empty(sizes, {kBool, kCPU});
  bool* out = t.mutable_data<bool>();
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i] < 0.5;
  return t.to(default_device());
}
Attrs ints(std::initializer_list<int64_t> values) { return {.ints = values}; }
Tensor plain(const Dims& sizes) { return real(sizes); }
Tensor tied(const Dims& sizes) { return halves(sizes); }
Tensor sparse(const Dims& sizes) { return halves(sizes, 0, 0.55); }
Tensor dense(const Dims& sizes) { return halves(sizes, 0.45, 3); }
Tensor special(const Dims& sizes) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<double> values = halves(sizes).to_vector<double>();
  for (double& v : values) {
    if (v == 2.5) v = kInf;
    else if (v == -2.5) v = -kInf;
    else if (v == 1.5) v = std::numeric_limits<double>::quiet_NaN();
  }
  return Tensor::from(values, sizes);
}
std::vector<Dims> unary_shapes(bool large) {
  if (large) return {{257, 401}};
  return {{7, 5}, {0, 3}, {}, {1, 1}, {33}, {2, 3, 4, 5}, {1, 70}};
}
const std::vector<Dims>& row_shapes() {
  static const std::vector<Dims> shapes = {{3, 7}, {2, 3, 33}, {5, 1}, {0, 4}, {1, 1}, {9}, {150, 5}, {2, 70}};
  return shapes;
}
Tensor any_bits(const Dims& sizes, DType dtype, double numbers) {
  const double limit = numbers > 0 ? numbers : dtype == kI64 ? 9e18 : 2e9;
  const std::vector<double> values =
      real(sizes, dtype == kU8 ? 0 : -limit, dtype == kU8 ? 256 : limit).to_vector<double>();
  return Tensor::from(values, sizes).to(dtype == kBool ? kI64 : dtype).to(dtype);
}

}  // namespace rondo::test::samples
