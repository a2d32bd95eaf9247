// Random convolutions, poolings, products and norms against sums in f64, with guard pages around all memory
// (guarded_memory.h). The library that multiplies has other kernels for each instruction set, so CTest runs this once
// more with ONEDNN_MAX_CPU_ISA=AVX2.
//
// Each seed is one case. RONDO_TEST_SEEDS=20000 runs as many of each kind, 812:1 the one of seed 812.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/matmul.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/close.h"
#include "rondo/tests/guarded_memory.h"

namespace rondo {
namespace {

using test::GuardedMemory;
using Side = GuardedMemory::Side;
using Values = std::vector<double>;
using Extent = std::array<int64_t, 2>;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [low, high].
  int64_t of(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return of(1, n) == 1; }
  template <class T> T any(std::initializer_list<T> from) {
    return from.begin()[of(0, static_cast<int64_t>(from.size()) - 1)];
  }
  // Small sizes, multiples of the widths of vectors, and what is beside them.
  int64_t size(int64_t most) {
    const int64_t n = one_in(4) ? any<int64_t>({8, 16, 32, 48, 64}) + of(-1, 1) : one_in(3) ? of(1, 40) : of(1, 17);
    return std::min(n, most);
  }
  // Small integers: each dtype holds them, and sums of some ten thousand products of them are exact in f32.
  Values integers(int64_t n) {
    Values values(static_cast<size_t>(n));
    for (double& v : values) v = static_cast<double>(of(-4, 4));
    return values;
  }
  Values reals(int64_t n) {
    Values values(static_cast<size_t>(n));
    for (double& v : values) v = static_cast<double>(of(-1000, 1000)) / 500;
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

std::string text(std::initializer_list<std::pair<const char*, int64_t>> numbers) {
  return absl::StrJoin(numbers, " ", [](std::string* out, const auto& n) { absl::StrAppend(out, n.first, n.second); });
}

// Sums are exact, so what is wanted has one rounding.
double bound_of(DType dtype, double want) {
  const double unit = dtype == kBF16 ? 1.0 / 256 : dtype == kF16 ? 1.0 / 2048 : 0;
  return unit * std::abs(want);
}
void expect_exact(const Tensor& got, const Values& want, const char* name) {
  Values bounds;
  for (const double w : want) bounds.push_back(bound_of(got.dtype(), w));
  EXPECT_TRUE(test::is_close(got.to_vector<double>(), want, bounds)) << name;
}

// Runs a case twice, once for each side. `run(random, place)` calls place(), which describes it, and returns what it
// said.
template <class F> void on_each_side(GuardedMemory& memory, uint64_t seed, F run) {
  for (const Side side : {Side::kLeft, Side::kRight}) {
    const std::string what = run(Random(seed), [&](const std::string& what) -> GuardedMemory& {
      memory.place(side, absl::StrCat("seed ", seed, side == Side::kLeft ? ", left: " : ", right: ", what));
      return memory;
    });
    EXPECT_EQ(memory.damage(), "") << what;
    ASSERT_FALSE(testing::Test::HasFailure()) << "RONDO_TEST_SEEDS=" << seed << ":1, " << what;
  }
}
template <class F> void for_each_seed(uint64_t first_seed, int64_t count, F run) {
  if (const char* const given = std::getenv("RONDO_TEST_SEEDS"); given != nullptr) {
    const std::string_view all = given;
    const size_t colon = all.find(':');
    const std::string_view number = colon == std::string_view::npos ? all : all.substr(colon + 1);
    std::from_chars(number.data(), number.data() + number.size(), count);
    if (colon != std::string_view::npos) std::from_chars(all.data(), all.data() + colon, first_seed);
  }
  GuardedMemory memory;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(count); ++seed) {
    on_each_side(memory, seed, run);
    if (testing::Test::HasFailure()) return;
  }
}

Dims strides_of(const Dims& sizes, bool channels_last) {
  if (channels_last) return channels_last_strides(sizes);
  return contiguous_strides(sizes);
}

// ---- Convolutions

struct Image {
  int64_t batch, channels;
  Extent size;
  int64_t at(int64_t b, int64_t c, int64_t h, int64_t w) const {
    return ((b * channels + c) * size[0] + h) * size[1] + w;
  }
  int64_t numel() const { return batch * channels * size[0] * size[1]; }
  Dims sizes() const { return {batch, channels, size[0], size[1]}; }
};

struct ConvolutionCase {
  DType dtype;
  Image input, output, weight;  // weight: (outputs, channels of a group, kernel)
  int64_t groups;
  Extent stride, dilation, padding;
  bool bias;
  bool input_last, weight_last, output_last;

  // Channels last, without a bias.
  ConvolutionCase(DType dtype, int64_t groups, Image input, Image weight, Extent stride, Extent dilation,
                  Extent padding)
      : dtype(dtype),
        input(input),
        output{input.batch, weight.batch, {}},
        weight(weight),
        groups(groups),
        stride(stride),
        dilation(dilation),
        padding(padding),
        bias(false),
        input_last(true),
        weight_last(true),
        output_last(true) {
    set_output_size();
  }
  explicit ConvolutionCase(Random& r) {
    const bool in_bands = r.one_in(80);  // so much work that an image is cut (cpu/convolution_library.h, Note [Pieces])
    const int64_t least = in_bands ? 4'000'000 : 1, most = in_bands ? 16'000'000 : 300'000;
    do choose(r);
    while (output.size[0] < 1 || output.size[1] < 1 || products() < least || products() > most);
  }
  int64_t products() const { return output.numel() * weight.numel() / weight.batch; }
  std::string describe() const {
    return absl::StrCat("conv2d ", std::string(name_of(dtype)), " ",
                        text({{"b", input.batch},
                              {"c", input.channels},
                              {"o", output.channels},
                              {"groups ", groups},
                              {"h", input.size[0]},
                              {"w", input.size[1]},
                              {"kernel ", weight.size[0]},
                              {"x", weight.size[1]},
                              {"stride ", stride[0]},
                              {"x", stride[1]},
                              {"dilation ", dilation[0]},
                              {"x", dilation[1]},
                              {"padding ", padding[0]},
                              {"x", padding[1]},
                              {"bias ", bias},
                              {"last: input ", input_last},
                              {"weight ", weight_last},
                              {"output ", output_last}}));
  }
  // fn(index in the input, in the weight, in the output) for each product.
  template <class F> void each_product(F fn) const {
    const int64_t outputs = output.channels / groups;
    for (int64_t b = 0; b < output.batch; ++b)
      for (int64_t o = 0; o < output.channels; ++o)
        for (int64_t h = 0; h < output.size[0]; ++h)
          for (int64_t w = 0; w < output.size[1]; ++w)
            for (int64_t i = 0; i < weight.size[0]; ++i)
              for (int64_t j = 0; j < weight.size[1]; ++j) {
                const int64_t y = h * stride[0] - padding[0] + i * dilation[0],
                              x = w * stride[1] - padding[1] + j * dilation[1];
                if (y < 0 || y >= input.size[0] || x < 0 || x >= input.size[1]) continue;
                for (int64_t c = 0; c < weight.channels; ++c)
                  fn(input.at(b, o / outputs * weight.channels + c, y, x), weight.at(o, c, i, j),
                     output.at(b, o, h, w));
              }
  }

 private:
  void set_output_size() {
    for (size_t d = 0; d < 2; ++d) {
      const int64_t room = input.size[d] + 2 * padding[d] - (weight.size[d] - 1) * dilation[d] - 1;
      output.size[d] = room < 0 ? 0 : room / stride[d] + 1;
    }
  }
  void choose(Random& r) {
    dtype = r.any<DType>({kF32, kF32, kF32, kBF16, kBF16, r.one_in(2) ? kF64 : kF16});
    const bool depthwise = r.one_in(8), one_by_one = r.one_in(4), large = r.one_in(6);
    groups = depthwise ? r.of(2, 20) : r.one_in(4) ? r.of(2, 4) : 1;
    const int64_t channels = depthwise ? 1 : r.size(64), outputs = depthwise ? r.of(1, 2) : r.size(64);
    Extent kernel, in;
    for (size_t d = 0; d < 2; ++d) {
      const bool like_first = d == 1 && !r.one_in(3);
      kernel[d] = like_first ? kernel[0] : one_by_one ? 1 : large ? r.of(6, 13) : r.of(1, 5);
      stride[d] = like_first ? stride[0] : r.of(1, r.one_in(3) ? 3 : 2);
      dilation[d] = like_first ? dilation[0] : r.one_in(4) ? r.of(2, 3) : 1;
      in[d] = r.of(1, r.one_in(3) ? 40 : 14);
      if (large) in[d] += kernel[d] * dilation[d];
      if (one_by_one) in[d] *= stride[d];
      const int64_t half = (kernel[d] - 1) * dilation[d] / 2;
      padding[d] = r.one_in(2) ? half : r.of(0, half + (r.one_in(4) ? 1 : 0));
    }
    const int64_t batch = r.of(1, 3);
    input = {batch, channels * groups, in};
    weight = {outputs * groups, channels, kernel};
    output = {batch, outputs * groups, {}};
    set_output_size();
    bias = r.one_in(2);
    input_last = r.one_in(2);
    weight_last = r.one_in(2);
    output_last = r.one_in(2);
  }
};

// Output and gradients of `c`, of small integers.
void check_convolution(const ConvolutionCase& c, Random& r, GuardedMemory& memory) {
  const Values x = r.integers(c.input.numel()), w = r.integers(c.weight.numel()), g = r.integers(c.output.numel()),
               bias = r.integers(c.output.channels);
  Values y(g.size()), grad_x(x.size()), grad_w(w.size()), grad_bias(bias.size());
  const int64_t pixels = c.output.size[0] * c.output.size[1];
  const auto channel = [&](size_t i) { return i / static_cast<size_t>(pixels) % bias.size(); };
  for (size_t i = 0; i < g.size(); ++i) {
    if (c.bias) y[i] = bias[channel(i)];
    grad_bias[channel(i)] += g[i];
  }
  c.each_product([&](int64_t in, int64_t weight, int64_t out) {
    const auto i = static_cast<size_t>(in), k = static_cast<size_t>(weight), o = static_cast<size_t>(out);
    y[o] += x[i] * w[k];
    grad_x[i] += g[o] * w[k];
    grad_w[k] += g[o] * x[i];
  });
  const auto leaf = [&](const Values& values, const Dims& sizes, bool last) {
    return memory.tensor(values, sizes, strides_of(sizes, last), c.dtype).requires_grad_();
  };
  const Tensor in = leaf(x, c.input.sizes(), c.input_last), weight = leaf(w, c.weight.sizes(), c.weight_last),
               b = c.bias ? leaf(bias, {c.output.channels}, false) : Tensor();
  const Tensor out = ops::conv2d(in, weight, b,
                                 {.stride = {c.stride[0], c.stride[1]},
                                  .padding = {c.padding[0], c.padding[1]},
                                  .dilation = {c.dilation[0], c.dilation[1]},
                                  .groups = c.groups});
  out.backward(memory.tensor(g, c.output.sizes(), strides_of(c.output.sizes(), c.output_last), c.dtype));
  expect_exact(out, y, "output");
  expect_exact(in.grad(), grad_x, "gradient of the input");
  expect_exact(weight.grad(), grad_w, "gradient of the weight");
  if (c.bias) expect_exact(b.grad(), grad_bias, "gradient of the bias");
}

TEST(GuardPages, Convolutions) {
  for_each_seed(1, 800, [](Random r, auto place) {
    const ConvolutionCase c(r);
    const std::string what = c.describe();
    check_convolution(c, r, place(what));
    return what;
  });
}

// cpu/wrong_kernels.cc: some of each kind.
TEST(GuardPages, ConvolutionsWhoseKernelsAreWrong) {
  const ConvolutionCase cases[] = {
      // The gradient of the weight: images narrower than the stride.
      {kBF16, 5, {1, 5, {11, 1}}, {5, 1, {5, 5}}, {3, 3}, {1, 1}, {2, 2}},
      {kBF16, 1, {3, 49, {2, 1}}, {17, 49, {3, 3}}, {2, 2}, {1, 1}, {1, 1}},
      {kBF16, 10, {1, 10, {31, 2}}, {20, 1, {5, 5}}, {3, 3}, {1, 1}, {2, 2}},
      // More than two blocks of channels, the last one not whole.
      {kBF16, 1, {1, 47, {10, 5}}, {10, 47, {3, 4}}, {1, 2}, {3, 1}, {3, 0}},
      {kBF16, 2, {3, 66, {32, 11}}, {6, 33, {1, 1}}, {1, 1}, {1, 1}, {0, 0}},
      {kBF16, 1, {1, 63, {8, 5}}, {33, 63, {2, 2}}, {1, 1}, {2, 2}, {1, 1}},
      // Groups that are no whole blocks.
      {kBF16, 14, {3, 14, {11, 29}}, {14, 1, {1, 1}}, {1, 1}, {1, 1}, {0, 0}},
      {kBF16, 2, {2, 10, {8, 40}}, {6, 5, {1, 1}}, {1, 1}, {1, 1}, {0, 0}},
      // Few channels and a stride.
      {kBF16, 1, {3, 14, {6, 22}}, {15, 14, {1, 1}}, {2, 2}, {1, 1}, {0, 0}},
      {kBF16, 1, {1, 4, {6, 26}}, {64, 4, {1, 1}}, {2, 2}, {1, 1}, {0, 0}},
      // The gradient of the input: an odd number of outputs.
      {kBF16, 1, {1, 14, {12, 30}}, {15, 14, {1, 1}}, {1, 1}, {1, 1}, {0, 0}},
      {kBF16, 1, {1, 64, {30, 10}}, {7, 64, {1, 1}}, {1, 1}, {1, 1}, {0, 0}},
      {kBF16, 1, {3, 5, {10, 27}}, {5, 5, {1, 1}}, {1, 3}, {1, 1}, {0, 0}},
      // The output: one that reads nothing but padding.
      {kBF16, 1, {1, 12, {30, 96}}, {47, 12, {1, 1}}, {3, 3}, {1, 1}, {0, 1}},
      {kBF16, 1, {2, 49, {22, 20}}, {1, 49, {1, 1}}, {2, 2}, {1, 1}, {0, 1}},
      {kF32, 1, {2, 2, {10, 1}}, {7, 2, {3, 1}}, {1, 2}, {2, 3}, {3, 1}},
      {kF32, 1, {1, 64, {96, 96}}, {64, 64, {1, 1}}, {1, 1}, {1, 1}, {1, 1}},   // in bands
      {kBF16, 1, {1, 64, {96, 96}}, {64, 64, {1, 1}}, {1, 1}, {1, 1}, {1, 1}},  // in bands
      // The output: a stride and one column.
      {kBF16, 3, {3, 81, {12, 2}}, {27, 27, {4, 4}}, {2, 2}, {1, 1}, {1, 1}},
      {kBF16, 1, {3, 3, {10, 2}}, {2, 3, {2, 2}}, {2, 2}, {1, 1}, {0, 0}},
      {kBF16, 1, {2, 1, {5, 3}}, {4, 1, {3, 4}}, {1, 2}, {1, 1}, {0, 1}},
      {kBF16, 1, {2, 38, {20, 1}}, {10, 38, {1, 5}}, {2, 3}, {1, 1}, {0, 2}},
  };
  GuardedMemory memory;
  for (const ConvolutionCase& c : cases)
    on_each_side(memory, 1, [&](Random r, auto place) {
      const std::string what = c.describe();
      check_convolution(c, r, place(what));
      return what;
    });
}

// ---- Products

// (batch..., rows, columns) with gaps or transposed.
struct MatrixCase {
  Dims sizes, strides;
  MatrixCase(Random& r, const Dims& batch, int64_t rows, int64_t columns) : sizes(batch), strides(batch) {
    const bool transposed = r.one_in(2);
    const int64_t inner = (transposed ? rows : columns), outer = (transposed ? columns : rows);
    const int64_t step = inner + (r.one_in(3) ? r.of(1, 9) : 0);
    int64_t next = step * outer + (r.one_in(4) ? r.of(1, 9) : 0);
    for (int d = batch.rank() - 1; d >= 0; --d) {
      strides[d] = next;
      next *= batch[d];
    }
    for (const int64_t n : {rows, columns}) sizes.push_back(n);
    strides.push_back(transposed ? 1 : step);
    strides.push_back(transposed ? step : 1);
  }
  std::string describe() const { return absl::StrCat(to_string(sizes), " by ", to_string(strides)); }
};

TEST(GuardPages, Products) {
  for_each_seed(1, 1500, [](Random r, auto place) {
    const DType dtype = r.one_in(2) ? r.any<DType>({kBF16, kF64, kF16}) : kF32;
    const bool tall = r.one_in(6), deep = r.one_in(8);
    const int64_t m = tall          ? r.of(190, 420)
                      : r.one_in(3) ? r.of(1, 5)
                                    : r.size(100),
                  n = r.size(deep ? 10 : 100), k = deep ? 32 * r.of(1, 40) + r.of(-1, 1) : r.size(100);
    Dims a_batch, b_batch, batch;
    for (int64_t d = tall ? 0 : r.of(0, 2); d > 0; --d) {
      const int64_t size = r.of(1, 4);
      const bool shared = r.one_in(4), a_has = r.one_in(2);
      a_batch.push_back(shared && a_has ? 1 : size);
      b_batch.push_back(shared && !a_has ? 1 : size);
      batch.push_back(size);
    }
    if (r.one_in(3)) b_batch = {}, batch = a_batch;
    const MatrixCase a(r, a_batch, m, k), b(r, b_batch, k, n);
    const std::string what = absl::StrCat("matmul ", std::string(name_of(dtype)), " ", a.describe(), ", ",
                                          b.describe());
    GuardedMemory& memory = place(what);
    const Values x = r.integers(a.sizes.numel()), y = r.integers(b.sizes.numel());
    Values want(static_cast<size_t>(batch.numel() * m * n));
    for (int64_t i = 0; i < batch.numel(); ++i) {
      // Which matrix of an operand this is.
      const auto matrix = [&](const Dims& of) {
        int64_t at = 0, step = 1, rest = i;
        for (int d = batch.rank() - 1; d >= 0; --d) {
          const int own = d - batch.rank() + of.rank();
          if (own >= 0) {
            if (of[own] > 1) at += rest % batch[d] * step;
            step *= of[own];
          }
          rest /= batch[d];
        }
        return at;
      };
      const int64_t left = matrix(a_batch) * m * k, right = matrix(b_batch) * k * n;
      for (int64_t row = 0; row < m; ++row)
        for (int64_t l = 0; l < k; ++l)
          for (int64_t column = 0; column < n; ++column)
            want[static_cast<size_t>((i * m + row) * n + column)] += x[static_cast<size_t>(left + row * k + l)] *
                                                                     y[static_cast<size_t>(right + l * n + column)];
    }
    const Tensor left = memory.tensor(x, a.sizes, a.strides, dtype),
                 right = memory.tensor(y, b.sizes, b.strides, dtype);
    expect_exact(ops::matmul(left, right), want, "matmul");
    if (batch.rank() > 0) return what;
    // The same with a bias.
    const Values bias = r.integers(n);
    for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % static_cast<size_t>(n)];
    const Tensor add = memory.tensor(bias, {n}, {1}, dtype);
    expect_exact(ops::linear(left, right.t(), add), want, "linear");
    return what;
  });
}

// A result whose rows have gaps, as kernels ask for it.
TEST(GuardPages, ProductsIntoGaps) {
  for_each_seed(1, 600, [](Random r, auto place) {
    const DType dtype = r.any<DType>({kF32, kF64, kBF16, kF16});
    const int64_t m = r.size(64), n = r.size(64), k = r.size(64), batch = r.one_in(3) ? r.of(2, 4) : 1;
    const MatrixCase a(r, {batch}, m, k), b(r, {batch}, k, n);
    const int64_t row = n + r.of(0, 9), matrix = m * row + r.of(0, 9);
    MatmulCall call(dtype, m, n, k, {a.strides[1], a.strides[2], a.strides[0]},
                    {b.strides[1], b.strides[2], b.strides[0]}, {row, 1, matrix}, batch);
    call.bias = r.one_in(2);
    const std::string what = absl::StrCat("product ", std::string(name_of(dtype)), " ", a.describe(), ", ",
                                          b.describe(),
                                          text({{" rows ", row}, {"matrices ", matrix}, {"bias ", call.bias}}));
    GuardedMemory& memory = place(what);
    const Values x = r.integers(a.sizes.numel()), y = r.integers(b.sizes.numel()), bias = r.integers(n);
    Values want;
    for (int64_t i = 0; i < batch; ++i)
      for (int64_t h = 0; h < m; ++h)
        for (int64_t w = 0; w < n; ++w) {
          double sum = call.bias ? bias[static_cast<size_t>(w)] : 0;
          for (int64_t l = 0; l < k; ++l)
            sum += x[static_cast<size_t>((i * m + h) * k + l)] * y[static_cast<size_t>((i * k + l) * n + w)];
          want.push_back(sum);
        }
    const Tensor left = memory.tensor(x, a.sizes, a.strides, dtype),
                 right = memory.tensor(y, b.sizes, b.strides, dtype), add = memory.tensor(bias, {n}, {1}, dtype);
    const Dims sizes = {batch, m, n}, strides = {matrix, row, 1};
    Tensor out = memory.tensor(Values(want.size()), sizes, strides, dtype);
    cpu::matmul(call,
                {.a = left.raw_data(), .b = right.raw_data(), .bias = add.raw_data(), .c = out.raw_mutable_data()});
    expect_exact(out, want, "product");
    // The gaps still hold what memory.tensor() left there.
    const int64_t extent = (batch - 1) * matrix + (m - 1) * row + n;
    const auto bytes = [&](const Tensor& t) {
      const auto* const data = static_cast<const unsigned char*>(t.raw_data());
      return std::vector<unsigned char>(data, data + extent * static_cast<int64_t>(size_of(dtype)));
    };
    const Tensor fresh = memory.tensor(want, sizes, strides, dtype);
    out.copy_(fresh);
    EXPECT_EQ(bytes(out), bytes(fresh)) << what;
    return what;
  });
}

// ---- Poolings and norms: against the same in f64

Tensor in_f64(const Values& values, const Dims& sizes) { return Tensor::from(values, sizes, kF64).requires_grad_(); }

double unit_of(DType dtype) {
  return dtype == kBF16 ? 1.0 / 128 : dtype == kF16 ? 1.0 / 512 : dtype == kF32 ? 2e-5 : 1e-12;
}

TEST(GuardPages, Poolings) {
  for_each_seed(1, 300, [](Random r, auto place) {
    const DType dtype = r.any<DType>({kF32, kF32, kBF16, kF64, kF16});
    const bool last = r.one_in(2), grad_last = r.one_in(2), ceil = r.one_in(2), counts = r.one_in(2);
    const int64_t kind = r.of(0, 2);
    Extent kernel, stride, padding, dilation, size;
    for (size_t d = 0; d < 2; ++d) {
      kernel[d] = r.of(1, 5), stride[d] = r.of(1, 4), padding[d] = r.of(0, kernel[d] / 2);
      dilation[d] = kind == 0 && r.one_in(3) ? 2 : 1;
      size[d] = (kernel[d] - 1) * dilation[d] + r.of(1, 20);
    }
    const Dims sizes = {r.of(1, 3), r.size(64), size[0], size[1]};
    const Extent adaptive = {r.of(1, 7), r.of(1, 7)};
    const std::string what = absl::StrCat(kind == 0   ? "max_pool2d "
                                          : kind == 1 ? "avg_pool2d "
                                                      : "adaptive_avg_pool2d ",
                                          std::string(name_of(dtype)), " ", to_string(sizes),
                                          text({{" kernel ", kernel[0]},
                                                {"x", kernel[1]},
                                                {"stride ", stride[0]},
                                                {"x", stride[1]},
                                                {"padding ", padding[0]},
                                                {"x", padding[1]},
                                                {"dilation ", dilation[0]},
                                                {"x", dilation[1]},
                                                {"to ", adaptive[0]},
                                                {"x", adaptive[1]},
                                                {"ceil ", ceil},
                                                {"counts ", counts},
                                                {"last: input ", last},
                                                {"output ", grad_last}}));
    GuardedMemory& memory = place(what);
    const auto pool = [&](const Tensor& x) {
      if (kind == 0)
        return ops::max_pool2d(x, {kernel[0], kernel[1]},
                               {.stride = ops::Spatial<2>{stride[0], stride[1]},
                                .padding = {padding[0], padding[1]},
                                .dilation = {dilation[0], dilation[1]},
                                .ceil_mode = ceil});
      if (kind == 1)
        return ops::avg_pool2d(x, {kernel[0], kernel[1]},
                               {.stride = ops::Spatial<2>{stride[0], stride[1]},
                                .padding = {padding[0], padding[1]},
                                .ceil_mode = ceil,
                                .count_include_pad = counts});
      return ops::adaptive_avg_pool2d(x, {adaptive[0], adaptive[1]});
    };
    const Values values = r.integers(sizes.numel());
    const Tensor want_x = in_f64(values, sizes), want = pool(want_x),
                 x = memory.tensor(values, sizes, strides_of(sizes, last), dtype).requires_grad_(), y = pool(x);
    const Values g = r.integers(want.numel());
    want.backward(Tensor::from(g, want.sizes(), kF64));
    y.backward(memory.tensor(g, y.sizes(), strides_of(y.sizes(), grad_last), dtype));
    const test::Tolerance tolerance = test::of_largest_above_1(unit_of(dtype));
    EXPECT_TRUE(test::is_close(y.to(kF64), want, tolerance)) << "output";
    EXPECT_TRUE(test::is_close(x.grad().to(kF64), want_x.grad(), tolerance)) << "gradient";
    return what;
  });
}

TEST(GuardPages, Norms) {
  for_each_seed(1, 600, [](Random r, auto place) {
    const DType dtype = r.any<DType>({kF32, kF32, kBF16, kF64, kF16});
    const int64_t kind = r.of(0, 3), groups = r.of(1, 4);
    const bool image = kind >= 2, last = image && r.one_in(2), grad_last = image && r.one_in(2), affine = !r.one_in(3);
    const Dims sizes = image ? Dims{r.of(1, 3), r.size(40) * groups, r.of(2, 12), r.of(1, 12)}
                             : Dims{r.of(1, 5), r.of(1, 7), r.one_in(4) ? r.of(1, 300) : r.size(100)};
    const int64_t channels = image ? sizes[1] : sizes[2];
    const char* const names[] = {"layer_norm ", "rms_norm ", "batch_norm ", "group_norm "};
    const std::string what = absl::StrCat(
        names[kind], std::string(name_of(dtype)), " ", to_string(sizes),
        text({{" groups ", groups}, {"affine ", affine}, {"last: input ", last}, {"output ", grad_last}}));
    GuardedMemory& memory = place(what);
    const Values values = r.reals(sizes.numel()), scale = r.reals(channels), shift = r.reals(channels),
                 g = r.integers(sizes.numel());
    constexpr double kEps = 0.1;  // so that the gradient's terms do not grow
    const auto norm = [&](const Tensor& x, const Tensor& w, const Tensor& b) {
      switch (kind) {
        case 0: return ops::layer_norm(x, w, b, kEps);
        case 1: return ops::rms_norm(x, w, kEps);
        case 2: return ops::batch_norm(x, w, b, kEps).y;
        default: return ops::group_norm(x, groups, w, b, kEps);
      }
    };
    const auto guarded = [&](const Values& values, const Dims& sizes, bool last) {
      return memory.tensor(values, sizes, strides_of(sizes, last), dtype);
    };
    const bool has_weight = affine || !image, has_bias = has_weight && kind != 1;
    Tensor x = guarded(values, sizes, last).requires_grad_(),
           w = has_weight ? guarded(scale, {channels}, false).requires_grad_() : Tensor(),
           b = has_bias ? guarded(shift, {channels}, false).requires_grad_() : Tensor();
    // The values as the dtype has rounded them, in f64.
    const auto wide = [](const Tensor& t) {
      return t.defined() ? t.detach().to(kF64).clone().requires_grad_() : Tensor();
    };
    const Tensor x64 = wide(x), w64 = wide(w), b64 = wide(b), y = norm(x, w, b), want = norm(x64, w64, b64);
    y.backward(guarded(g, sizes, grad_last));
    want.backward(Tensor::from(g, sizes, kF64));
    const test::Tolerance tolerance = test::of_largest_above_1(4 * unit_of(dtype));
    EXPECT_TRUE(test::is_close(y.to(kF64), want, tolerance)) << "output";
    EXPECT_TRUE(test::is_close(x.grad().to(kF64), x64.grad(), tolerance)) << "gradient of the input";
    if (has_weight) {
      EXPECT_TRUE(test::is_close(w.grad().to(kF64), w64.grad(), tolerance)) << "gradient of the weight";
    }
    if (has_bias) {
      EXPECT_TRUE(test::is_close(b.grad().to(kF64), b64.grad(), tolerance)) << "gradient of the bias";
    }
    return what;
  });
}

}  // namespace
}  // namespace rondo
