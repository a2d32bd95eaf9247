// any and all in every layout, against their decomposition, and without temporaries.
#include <gtest/gtest.h>

#include <random>

#include "rondo/runtime/memory.h"
#include "rondo/runtime/op.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/storage.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;

// Mostly false, or mostly true.
Tensor coins(const Dims& sizes, double share, uint64_t seed, DType dtype) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<size_t>(sizes.numel()));
  for (float& v : values) v = static_cast<double>(random() >> 11) * 0x1p-53 < share ? 1.0f : 0.0f;
  return Tensor::from(values, sizes, kCPU).to(dtype);
}

Tensor in_parts(const OpDef& op, const Tensor& x, const Attrs& attrs) {
  Tensor out;
  op.decompose({&x, 1}, attrs, {&out, 1});
  return out;
}

TEST(Truth, OfAnyLayoutAndAnyDimensions) {
  std::mt19937 random(5);
  const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 600; ++trial) {
    Dims sizes;
    for (int d = 0, rank = one_of(5); d < rank; ++d)
      sizes.push_back(std::array<int64_t, 6>{1, 2, 3, 7, 33, 70}[one_of(6)]);
    if (sizes.numel() > 200000) continue;
    const DType dtype = std::array{kBool, kU8, kI32, kI64, kF32, kBF16, kF16, kF64}[one_of(8)];
    const double share = std::array{0.0, 0.001, 0.05, 0.95, 0.999, 1.0}[one_of(6)];
    Tensor x = coins(sizes, share, static_cast<uint64_t>(trial), dtype);
    for (int change = one_of(4); change > 0 && x.rank() > 0; --change) {
      const int d = one_of(x.rank());
      switch (one_of(4)) {
        case 0: x = x.transpose(d, one_of(x.rank())); break;
        case 1: x = x.slice(d, {x.size(d) / 3, x.size(d), 1 + one_of(3)}); break;
        case 2:
          x = x.unsqueeze(d).expand([&] {
            Dims wide = x.sizes();
            wide.insert(d, 3);
            return wide;
          }());
          break;
        default: x = x.slice(d, {0, x.size(d) - x.size(d) / 4}); break;
      }
      if (x.rank() > 6) break;
    }
    const int64_t mask = static_cast<int64_t>(random() % (1u << x.rank()));
    const Attrs attrs{.ints = {mask, one_of(2)}};
    for (const OpDef* op : {&ops::kAnyTrue, &ops::kAllTrue})
      EXPECT_TRUE(same_bits(call(*op, {x}, attrs), in_parts(*op, x, attrs)))
          << op->name << " " << name_of(dtype) << to_string(x.sizes()) << " strides " << to_string(x.strides())
          << " mask " << mask << " share " << share;
  }
}

// Sizes at which work is cut into pieces, with one element that decides in each place in turn.
TEST(Truth, OneElementDecides) {
  for (const Dims& sizes :
       {Dims{200003}, Dims{5, 70001}, Dims{70001, 5}, Dims{300, 5000}, Dims{40009, 3}, Dims{3, 9, 8000}})
    for (const bool any : {true, false}) {
      Tensor x = Tensor::full(sizes, !any, kBool);
      const int64_t n = x.numel();
      for (const int64_t at : {int64_t{0}, n / 3, n / 2, n - 1}) {
        x.reshape({n})[at].fill_(any);
        for (int64_t mask = 1; mask < int64_t{1} << x.rank(); ++mask) {
          const OpDef& op = any ? ops::kAnyTrue : ops::kAllTrue;
          EXPECT_TRUE(same_bits(call(op, {x}, {.ints = {mask, 1}}), in_parts(op, x, {.ints = {mask, 1}})))
              << to_string(sizes) << " mask " << mask << " at " << at;
        }
        x.reshape({n})[at].fill_(!any);
      }
    }
}

TEST(Truth, OfSpecialFloats) {
  for (const DType dtype : {kF64, kF32, kBF16, kF16}) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(ops::any(Tensor::from({0.0, -0.0, 0.0}, {3}, dtype)).item(), 0);
    EXPECT_EQ(ops::any(Tensor::from({0.0, nan, -0.0}, {3}, dtype)).item(), 1);
    EXPECT_EQ(ops::all(Tensor::from({nan, -1.0, 1e-7}, {3}, dtype)).item(), 1);
    EXPECT_EQ(ops::all(Tensor::from({nan, -0.0, 1.0}, {3}, dtype)).item(), 0);
  }
}

// 16 MB of bool in several layouts: nothing is allocated but the result.
TEST(Truth, MakesNoTemporaries) {
  if (default_device() != kCPU) GTEST_SKIP() << "statistics of the host's memory";
  const Tensor x = Tensor::zeros({4096, 4096}, kBool), tall = x.view({1 << 20, 16}), deep = x.view({64, 64, 4096});
  const Tensor views[] = {x, x.t(), tall, tall.t(), deep, deep.transpose(0, 2), x.slice(1, {0, 4095, 2})};
  for (const Tensor& view : views)
    for (int64_t mask = 1; mask < int64_t{1} << view.rank(); ++mask)
      for (const OpDef* op : {&ops::kAnyTrue, &ops::kAllTrue}) {
        const int64_t before = allocator::stats().bytes_in_use;
        allocator::reset_peak();
        const Tensor out = call(*op, {view}, {.ints = {mask, 0}});
        EXPECT_LE(allocator::stats().peak_bytes - before, out.nbytes() + 4096)
            << op->name << to_string(view.sizes()) << " mask " << mask;
      }
}

}  // namespace
}  // namespace rondo
