// any and all in every layout, against their decomposition and a plain loop, and without temporaries.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
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

// True elements are any number that is not 0, and NaN; false ones are 0 and -0.
Tensor mixture(const Dims& sizes, double share, uint64_t seed, DType dtype) {
  std::mt19937_64 random(seed);
  const float of_true[] = {1, -1, 64, std::numeric_limits<float>::quiet_NaN()};
  const bool is_float = dtype == kF64 || dtype == kF32 || dtype == kBF16 || dtype == kF16;
  std::vector<float> values(static_cast<size_t>(sizes.numel()));
  for (float& v : values) {
    const bool is_true = static_cast<double>(random() >> 11) * 0x1p-53 < share;
    if (is_true) v = dtype == kU8 ? 1.0f + static_cast<float>(random() % 255) : of_true[random() % (is_float ? 4 : 3)];
    else v = random() % 2 != 0 && is_float ? -0.0f : 0.0f;
  }
  return Tensor::from(values, sizes, kCPU).to(dtype);
}

// One loop over the elements.
std::vector<uint8_t> plain(const Tensor& x, int64_t mask, bool any) {
  const std::vector<double> values = x.to(kF64).to_vector<double>();
  int64_t results = 1;
  for (int d = 0; d < x.rank(); ++d)
    if ((mask >> d & 1) == 0) results *= x.size(d);
  std::vector<uint8_t> out(static_cast<size_t>(results), !any);
  for (int64_t i = 0; i < x.numel(); ++i) {
    if ((values[static_cast<size_t>(i)] != 0) != any) continue;
    int64_t at = 0, extent = 1;
    for (int64_t d = x.rank() - 1, rest = i; d >= 0; rest /= x.size(static_cast<int>(d)), --d) {
      if ((mask >> d & 1) != 0) continue;
      at += rest % x.size(static_cast<int>(d)) * extent;
      extent *= x.size(static_cast<int>(d));
    }
    out[static_cast<size_t>(at)] = any;
  }
  return out;
}

std::vector<uint8_t> ours(const Tensor& x, int64_t mask, bool any) {
  return call(any ? ops::kAnyTrue : ops::kAllTrue, {x}, {.ints = {mask, 0}}).to_vector<uint8_t>();
}

void expect_as_plain(const Tensor& x) {
  for (int64_t mask = 1; mask < int64_t{1} << x.rank(); ++mask)
    for (const bool any : {true, false})
      EXPECT_EQ(ours(x, mask, any), plain(x, mask, any))
          << (any ? "any " : "all ") << name_of(x.dtype()) << to_string(x.sizes()) << " strides "
          << to_string(x.strides()) << " mask " << mask;
}

// Rows that share a word of hits, that fill one, and that need two; at odd addresses, with gaps, with steps.
TEST(Truth, RowsOfEveryWidth) {
  constexpr DType kDTypes[] = {kBool, kF32, kBool, kBF16, kU8, kI64, kBool, kF16, kF64, kI32};
  for (int64_t cols = 1; cols <= 70; ++cols)
    for (const bool mostly_true : {false, true}) {
      const double share = mostly_true ? 1 - 0.7 / static_cast<double>(cols) : 0.7 / static_cast<double>(cols);
      const DType dtype = kDTypes[cols % 10];
      const Tensor x = mixture({12345 / cols + 3, cols}, share, static_cast<uint64_t>(cols), dtype);
      expect_as_plain(x);
      expect_as_plain(x.slice(0, {1, x.size(0) - 1}));
      expect_as_plain(x.slice(1, {cols / 3, cols}));
      expect_as_plain(x.slice(1, {0, cols, 2}));
      expect_as_plain(x.slice(1, {cols / 2, cols, 3}));
    }
  for (const int64_t cols : {3, 8, 20, 50, 65}) expect_as_plain(mixture({70001 / cols, cols}, 0.02, 3, kBool));
}

// Widths around a word, around rows that are taken together, and around a strip; too few rows for a block and more.
TEST(Truth, ColumnsOfManyWidths) {
  for (const int64_t cols : {2, 5, 63, 64, 65, 130, 511, 513, 1000, 4095, 4096, 4097, 8200})
    for (const int64_t rows : {1, 2, 7, 30}) {
      const double share = 0.7 / static_cast<double>(rows);
      for (const DType dtype : {kBool, kBF16, kI64})
        for (const double true_share : {share, 1 - share}) {
          const Tensor x = mixture({rows, cols}, true_share, static_cast<uint64_t>(cols + rows), dtype);
          expect_as_plain(x);
          expect_as_plain(x.slice(1, {1, cols}));
          for (const int64_t step : {2, 9, dtype == kBool ? 65 : 5}) expect_as_plain(x.slice(1, {0, cols, step}));
        }
    }
  expect_as_plain(mixture({1000, 1000}, 1e-3, 1, kBool));
  expect_as_plain(mixture({60, 300, 20}, 1e-3, 2, kBool).slice(2, {0, 10}));
}

// One element that decides, in every place: its results change and no others.
TEST(Truth, OneElementDecidesItsRowAndColumn) {
  for (const int64_t cols : {2, 3, 4, 5, 6, 7, 8, 9, 13, 20, 31, 33, 50, 63, 64, 65, 129})
    for (const bool any : {true, false}) {
      const int64_t rows = 67;
      const Tensor x = Tensor::full({rows, cols}, !any, kBool), flat = x.reshape({rows * cols});
      for (int64_t at = 0; at < rows * cols; at += cols <= 20 ? 1 : 11) {
        flat[at].fill_(any);
        std::vector<uint8_t> of_rows(static_cast<size_t>(rows), !any), of_cols(static_cast<size_t>(cols), !any);
        of_rows[static_cast<size_t>(at / cols)] = any;
        of_cols[static_cast<size_t>(at % cols)] = any;
        EXPECT_EQ(ours(x, 2, any), of_rows) << cols << " at " << at;
        EXPECT_EQ(ours(x, 1, any), of_cols) << cols << " at " << at;
        flat[at].fill_(!any);
      }
    }
}

// What lies between the elements of a view decides nothing.
TEST(Truth, NeighboursDoNotCount) {
  for (const DType dtype : {kBool, kF16, kF32, kF64})
    for (const int64_t cols : {2, 7, 20, 100, 300, 5000})
      for (const int64_t step : {1, 2, 3, 5, 8, 17, 64, 70})
        for (const int64_t kept : {cols, cols / 2 + 1})
          for (const bool any : {true, false}) {
            const Tensor x = Tensor::full({40, cols}, any, dtype);
            Tensor view = x.slice(0, {1, 39}).slice(1, {0, kept, step});
            view.fill_(!any);
            for (const int64_t mask : {1, 2, 3}) {
              const std::vector<uint8_t> result = ours(view, mask, any);
              EXPECT_EQ(result, std::vector<uint8_t>(result.size(), !any))
                  << name_of(dtype) << to_string(view.sizes()) << " of " << cols << " step " << step << " mask "
                  << mask;
            }
            view[37][view.size(1) - 1].fill_(any);
            EXPECT_EQ(ours(view, 3, any), std::vector<uint8_t>{any});
            EXPECT_EQ(ours(view, 1, any).back(), any);
            EXPECT_EQ(ours(view, 2, any).back(), any);
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
