// What the sweep (op_sweep_test.cc) does not see: the public functions, layouts of results, pieces, second derivatives
// and errors.
#include <gtest/gtest.h>

#include <functional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/convolution_library.h"
#include "rondo/runtime/onednn/product_library.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using ops::kSamePadding;
using test::error_of;
using test::same_bits;
using test::uniform;

Tensor last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }
bool is_last(const Tensor& t) { return is_channels_last(t.sizes(), t.strides()); }
std::string sizes_of(const Tensor& t) { return to_string(t.sizes()); }

TEST(Convolution, SizesOfResults) {
  const Tensor x = uniform({2, 4, 9, 7}, -1, 1, 1), w = uniform({6, 4, 3, 2}, -1, 1, 2);
  EXPECT_EQ(sizes_of(ops::conv2d(x, w, {})), "[2, 6, 7, 6]");
  EXPECT_EQ(sizes_of(ops::conv2d(x, w, {}, {.stride = 2, .padding = {1, 0}})), "[2, 6, 5, 3]");
  EXPECT_EQ(sizes_of(ops::conv2d(x, w, {}, {.padding = kSamePadding, .dilation = {2, 3}})), "[2, 6, 9, 7]");
  const Tensor row = uniform({2, 4, 11}, -1, 1, 3), kernel = uniform({6, 2, 4}, -1, 1, 4);
  EXPECT_EQ(sizes_of(ops::conv1d(row, kernel, {}, {.stride = 3, .padding = 2, .groups = 2})), "[2, 6, 4]");
  EXPECT_EQ(sizes_of(ops::conv1d(row, kernel, {}, {.padding = kSamePadding, .groups = 2})), "[2, 6, 11]");
  const Tensor up = uniform({4, 3, 3, 2}, -1, 1, 5);
  EXPECT_EQ(sizes_of(ops::conv_transpose2d(x, up, {})), "[2, 3, 11, 8]");
  EXPECT_EQ(sizes_of(ops::conv_transpose2d(
                x, up, {}, {.stride = 2, .padding = 1, .output_padding = {1, 0}, .groups = 2, .dilation = {1, 2}})),
            "[2, 6, 18, 13]");
}

TEST(Convolution, OneDimensionIsTheOtherWithHeightOne) {
  const Tensor x = uniform({2, 6, 13}, -1, 1, 1).to(kF32), w = uniform({4, 3, 5}, -1, 1, 2).to(kF32),
               b = uniform({4}, -1, 1, 3).to(kF32);
  const Tensor y = ops::conv1d(x, w, b, {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
  const Tensor z = ops::conv2d(x.unsqueeze(2), w.unsqueeze(2), b,
                               {.stride = {1, 2}, .padding = {0, 1}, .dilation = {1, 2}, .groups = 2});
  EXPECT_TRUE(same_bits(y, z.squeeze(2)));
}

// A dilation above the stride allows more rows at the end than a stride: zeros at the input's end, or what the padding
// cut off.
TEST(Convolution, OutputPaddingBeyondTheStride) {
  const Tensor x = uniform({2, 4, 3, 5}, -1, 1, 1), w = uniform({4, 3, 3, 2}, -1, 1, 2), b = uniform({6}, -1, 1, 3);
  const ops::ConvTranspose2dOptions options = {
      .padding = {1, 3}, .output_padding = {2, 3}, .groups = 2, .dilation = {3, 4}};
  ops::ConvTranspose2dOptions whole = options;
  whole.padding = whole.output_padding = 0;
  for (const Tensor& in : {x, last(x), x.slice(0, {0, 0})}) {
    const Tensor all = ops::pad(ops::conv_transpose2d(in, w, {}, whole), {0, 3, 0, 2});  // every place, and zeros
    const Tensor wanted = all.slice(2, {1, all.size(2) - 1}).slice(3, {3, all.size(3) - 3});
    const Tensor y = ops::conv_transpose2d(in, w, b, options);
    EXPECT_EQ(sizes_of(y), sizes_of(wanted));
    EXPECT_TRUE(same_bits(y, (wanted + b.reshape({6, 1, 1})).contiguous()));
  }
  Tensor leaf = x.slice(0, {0, 0}).clone().requires_grad_();
  ops::conv_transpose2d(leaf, w, b, options).sum().backward();
  EXPECT_EQ(sizes_of(leaf.grad()), "[0, 4, 3, 5]");
}

// PyTorch: channels last if the input or the weight is; a tensor for which both layouts hold is in the usual one.
TEST(Convolution, ResultsLieAsTheOperandsDo) {
  for (DType dtype : {kF64, kF32, kBF16, kF16}) {
    const Tensor x = uniform({2, 4, 5, 6}, -1, 1, 1).to(dtype), w = uniform({8, 4, 3, 3}, -1, 1, 2).to(dtype);
    const Tensor b = uniform({8}, -1, 1, 3).to(dtype);
    const Tensor plain = ops::conv2d(x, w, b);
    EXPECT_TRUE(plain.is_contiguous());
    for (const Tensor& y : {ops::conv2d(last(x), w, b), ops::conv2d(x, last(w), b), ops::conv2d(last(x), last(w), b)}) {
      EXPECT_TRUE(is_last(y));
      EXPECT_TRUE(same_bits(y, plain));
    }
    const Tensor up = uniform({4, 3, 3, 3}, -1, 1, 4).to(dtype), c = uniform({3}, -1, 1, 5).to(dtype);
    EXPECT_TRUE(ops::conv_transpose2d(x, up, c).is_contiguous());
    EXPECT_TRUE(is_last(ops::conv_transpose2d(last(x), up, c)));
    EXPECT_TRUE(same_bits(ops::conv_transpose2d(last(x), up, c), ops::conv_transpose2d(x, up, c)));
  }
  const Tensor one = Tensor::ones({2, 1, 5, 5}), pixel = Tensor::ones({2, 7, 1, 1});
  EXPECT_FALSE(is_last(one));
  EXPECT_FALSE(is_last(pixel));
  EXPECT_TRUE(is_last(last(Tensor::ones({2, 3, 1, 4}))));
}

// Sums of many pieces do not depend on the number of threads.
TEST(Convolution, ThreadsDoNotChangeBits) {
  const int before = num_threads();
  for (DType dtype : {kF64, kF32, kBF16, kF16})
    for (const Dims& sizes : {Dims{1, 16, 64, 64}, Dims{33, 16, 16, 16}}) {
      auto all = [&](int threads) {
        set_num_threads(threads);
        Tensor x = uniform(sizes, -1, 1, 1).to(dtype), w = uniform({16, 16, 3, 3}, -1, 1, 2).to(dtype);
        x.requires_grad_();
        w.requires_grad_();
        const Tensor y = ops::conv2d(x, w, {}, {.padding = 1});
        y.backward(uniform(y.sizes(), -1, 1, 3).to(dtype));
        return std::vector<Tensor>{y, x.grad(), w.grad()};
      };
      const std::vector<Tensor> one = all(1), three = all(3);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], three[i])) << i;
    }
  set_num_threads(before);
}

// Few pixels and many weights: each thread makes the gradients for some of the output channels.
TEST(Convolution, WeightsOfFewPixelsComeInSlices) {
  struct Case {
    int64_t channels, outputs, kernel, stride;
  };
  for (const Case& c : {Case{128, 512, 3, 1}, Case{256, 1024, 1, 1}, Case{64, 1024, 5, 2}}) {
    SCOPED_TRACE(c.kernel);
    const int64_t padding = c.kernel / 2, size = 4 * c.stride;
    const cpu::ConvolutionCall call{.computes = cpu::ConvolutionCall::Computes::kWeight,
                                    .batch = 2,
                                    .channels = c.channels,
                                    .outputs = c.outputs,
                                    .input = {size, size},
                                    .kernel = {c.kernel, c.kernel},
                                    .output = {4, 4},
                                    .stride = {c.stride, c.stride},
                                    .padding_before = {padding, padding}};
    const auto library = cpu::LibraryConvolution::get(call);
    if (library == nullptr) GTEST_SKIP() << "the library has no kernel for this processor";
    const Tensor x = uniform({2, c.channels, size, size}, -1, 1, 1), g = uniform({2, c.outputs, 4, 4}, -1, 1, 2);
    const auto gradient = [&](const Tensor& x, const Tensor& g, bool last_weight) {
      const Tensor zeros = Tensor::zeros({c.outputs, c.channels, c.kernel, c.kernel}, {x.dtype()});
      Tensor w = last_weight ? last(zeros) : zeros;
      w.requires_grad_();
      const Tensor y = ops::conv2d(x, w, {}, {.stride = c.stride, .padding = padding});
      return autograd::grad({&y, 1}, {&w, 1}, {&g, 1})[0];
    };
    const Tensor plain = gradient(x.to(kF32), g.to(kF32), false);
    EXPECT_TRUE(test::is_close(plain, gradient(x, g, false).to(kF32), test::Tolerance{.of_largest = 1e-6}));
    EXPECT_TRUE(same_bits(gradient(last(x.to(kF32)), last(g.to(kF32)), true), plain));
    const Tensor half = gradient(x.to(kBF16), g.to(kBF16), false),
                 of_halves = gradient(x.to(kBF16).to(kF64), g.to(kBF16).to(kF64), false);
    EXPECT_TRUE(test::is_close(half.to(kF32), of_halves.to(kF32), test::Tolerance{.of_largest = 1.0 / 256}));
    EXPECT_TRUE(same_bits(gradient(last(x.to(kBF16)), last(g.to(kBF16)), true), half));
    // With AVX-512 the library's weights are in blocks of 16 x 16.
    if (library_has_avx512()) {
      EXPECT_GT(library->pieces(), 1u);
    }
  }
}

// The three results of a convolution in f32, against those in f64. `channels` and `outputs` are whole, not of a group.
void expect_like_f64(int64_t batch, int64_t channels, int64_t outputs, ops::Extent image, ops::Extent kernel,
                     const ops::Conv2dOptions& options) {
  // Small integers: f32 holds their sums exactly.
  const auto integers = [](const Dims& sizes, uint64_t seed) { return uniform(sizes, -5, 5, seed).to(kI64); };
  const auto all = [&](DType dtype, bool channels_last) {
    Tensor x = integers({batch, channels, image[0], image[1]}, 1).to(dtype),
           w = integers({outputs, channels / options.groups, kernel[0], kernel[1]}, 2).to(dtype);
    if (channels_last) x = last(x);
    x.requires_grad_();
    w.requires_grad_();
    const Tensor y = ops::conv2d(x, w, {}, options);
    y.backward(integers(y.sizes(), 3).to(dtype));
    return std::vector<Tensor>{y.to(kF64), x.grad().to(kF64), w.grad().to(kF64)};
  };
  const std::vector<Tensor> want = all(kF64, false);
  for (const bool channels_last : {false, true}) {
    const std::vector<Tensor> got = all(kF32, channels_last);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(test::is_close(got[i], want[i], test::Tolerance{})) << (i == 0   ? "output"
                                                                          : i == 1 ? "gradient of the input"
                                                                                   : "gradient of the weight")
                                                                      << ", channels last " << channels_last;
  }
}

// Where the library has only its reference, patches are multiplied.
TEST(Convolution, KernelsThatTheLibraryHasNoFastCodeFor) {
  for (const int64_t kernel : {9, 11, 12, 13})
    for (const int64_t channels : {1, 3, 8}) {
      SCOPED_TRACE(kernel * 100 + channels);
      expect_like_f64(1, channels, 4, {kernel + 23, kernel + 23}, {kernel, kernel}, {});
      expect_like_f64(2, 2 * channels, 6, {kernel + 24, kernel + 26}, {kernel, kernel}, {.stride = 2, .groups = 2});
    }
  for (const int64_t dilation : {2, 3}) {
    SCOPED_TRACE(dilation);
    expect_like_f64(1, 3, 4, {60, 60}, {9, 9}, {.dilation = dilation});
    expect_like_f64(2, 8, 8, {60, 60}, {9, 9}, {.padding = 4 * dilation, .dilation = dilation});
    expect_like_f64(1, 3, 5, {64, 58}, {12, 11}, {.padding = 1, .dilation = dilation});
  }
}

// cpu/wrong_kernels.cc.
TEST(Convolution, FewChannelsWithAStride) {
  for (const auto& [channels, outputs] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 16}, {3, 3}, {3, 64}, {4, 8}, {7, 7}, {9, 4}, {15, 16}})
    for (const ops::Extent stride : {ops::Extent{2, 2}, ops::Extent{1, 2}, ops::Extent{2, 1}, ops::Extent{4, 4}}) {
      SCOPED_TRACE(channels);
      expect_like_f64(1, channels, outputs, {20, 28}, {1, 1}, {.stride = {stride[0], stride[1]}});
      expect_like_f64(3, channels, outputs, {64, 64}, {1, 1}, {.stride = {stride[0], stride[1]}});
    }
}

std::vector<Tensor> grads_of(const Tensor& loss, const Tensor& x, const Tensor& w, bool create_graph) {
  const Tensor leaves[] = {x, w};
  return autograd::grad({&loss, 1}, leaves, {}, create_graph, create_graph);
}

// The second derivative along random directions, against differences of the first.
TEST(Convolution, SecondDerivatives) {
  struct Case {
    const char* name;
    Dims x, w;
    std::function<Tensor(const Tensor&, const Tensor&)> run;
  };
  const Case cases[] = {
      {"conv2d",
       {2, 4, 6, 5},
       {6, 2, 3, 2},
       [](const Tensor& x, const Tensor& w) {
         return ops::conv2d(x, w, {}, {.stride = {2, 1}, .padding = 1, .dilation = {1, 2}, .groups = 2});
       }},
      {"conv1d",
       {2, 3, 8},
       {4, 3, 3},
       [](const Tensor& x, const Tensor& w) { return ops::conv1d(x, w, {}, {.padding = kSamePadding}); }},
      {"conv_transpose2d",
       {2, 4, 3, 4},
       {4, 3, 3, 2},
       [](const Tensor& x, const Tensor& w) {
         return ops::conv_transpose2d(x, w, {}, {.stride = 2, .output_padding = 1, .groups = 2});
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Tensor x0 = uniform(c.x, -1, 1, 1), w0 = uniform(c.w, -1, 1, 2);
    const Tensor along_x = uniform(c.x, -1, 1, 3), along_w = uniform(c.w, -1, 1, 4);
    // The derivative of sum(y^3) in the directions, with or without its graph.
    const auto slope = [&](const Tensor& x, const Tensor& w, bool create_graph) {
      const Tensor y = c.run(x, w);
      const std::vector<Tensor> grads = grads_of(ops::sum(y * y * y), x, w, create_graph);
      return ops::sum(grads[0] * along_x) + ops::sum(grads[1] * along_w);
    };
    const auto leaf = [](const Tensor& t) {
      Tensor copy = t.clone();
      return copy.requires_grad_();
    };
    const Tensor x = leaf(x0), w = leaf(w0);
    const std::vector<Tensor> second = grads_of(slope(x, w, true), x, w, false);
    constexpr double kStep = 1e-5;
    const Tensor toward_x = uniform(c.x, -1, 1, 5), toward_w = uniform(c.w, -1, 1, 6);
    const auto at = [&](double sx, double sw) {
      return slope(leaf(x0 + toward_x * sx), leaf(w0 + toward_w * sw), false).item();
    };
    const double by_x = (at(kStep, 0) - at(-kStep, 0)) / (2 * kStep),
                 by_w = (at(0, kStep) - at(0, -kStep)) / (2 * kStep);
    EXPECT_NEAR(ops::sum(second[0] * toward_x).item(), by_x, 1e-5 * (1 + std::abs(by_x)));
    EXPECT_NEAR(ops::sum(second[1] * toward_w).item(), by_w, 1e-5 * (1 + std::abs(by_w)));
  }
}

TEST(Convolution, ErrorsNameTheNumbers) {
  const Tensor x = Tensor::zeros({1, 6, 8, 9}), w = Tensor::zeros({4, 3, 3, 3});
  const auto expect = [](const std::string& error, std::string_view part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_NE(error.find("convolution_test.cc:"), std::string::npos) << error;
  };
  const auto conv = [&](ops::Conv2dOptions options) { return error_of([&] { ops::conv2d(x, w, {}, options); }); };
  expect(conv({}), "conv2d: the weight is for 3 channels in each of 1 group, and the input has 6 channels");
  expect(conv({.groups = 3}), "the weight is for 3 channels in each of 3 groups, and the input has 6 channels");
  expect(conv({.groups = 0}), "the number of groups must be positive, it is 0");
  expect(conv({.stride = {1, 0}, .groups = 2}), "the stride must be positive, it is [1, 0]");
  expect(conv({.padding = {0, -1}, .groups = 2}), "the padding may not be negative, it is [0, -1]");
  expect(conv({.dilation = -1, .groups = 2}), "the dilation must be positive, it is [-1, -1]");
  expect(conv({.padding = {int64_t{1} << 40, 0}, .groups = 2}), "the padding may be at most 1073741824, it is");
  expect(conv({.stride = INT64_MAX, .groups = 2}), "the stride may be at most 1073741824, it is");
  expect(conv({.dilation = {1, 5}, .groups = 2}),
         "the kernel [3, 3], dilated [3, 11], is larger than the padded input [8, 9]");
  expect(conv({.stride = 2, .padding = kSamePadding, .groups = 2}),
         "padding that keeps the size needs stride 1, it is 2; got x [1, 6, 8, 9], weight [4, 3, 3, 3]");
  expect(error_of([&] {
           ops::conv2d(x, Tensor::zeros({3, 3, 3, 3}), {}, {.groups = 2});
         }),
         "the 3 output channels cannot be divided among 2 groups");
  expect(error_of([&] {
           ops::conv2d(x, Tensor::zeros({4, 6, 9, 9}), {});
         }),
         "the kernel [9, 9] is larger than the padded input [8, 9]");
  expect(error_of([&] { ops::conv2d(x, Tensor::zeros({4, 6, 0, 3}), {}); }), "the kernel must have a positive size");
  expect(error_of([&] {
           ops::conv2d(Tensor::zeros({6, 8, 9}), w, {});
         }),
         "conv2d: needs x (B, C, H, W) and a weight of 4 dimensions; got x [6, 8, 9]");
  expect(error_of([&] { ops::conv2d(x.to(kF64), w, {}, {.groups = 2}); }), "operands must have the same dtype");
  expect(error_of([&] { ops::conv2d(x, w, Tensor::zeros({3}), {.groups = 2}); }), "bias must be [4]");
  expect(error_of([&] {
           ops::conv2d(Tensor::zeros({1, 6, 8, 9}, kI64), Tensor::zeros({4, 6, 3, 3}, kI64), {});
         }),
         "must be floating point");

  const Tensor row = Tensor::zeros({1, 6, 8});
  expect(error_of([&] { ops::conv1d(x, w, {}); }), "conv1d: needs x (B, C, W) and a weight of 3 dimensions");
  expect(error_of([&] {
           ops::conv1d(row, Tensor::zeros({4, 6, 9}), {});
         }),
         "conv1d: the kernel 9 is larger than the padded input 8");
  expect(error_of([&] {
           ops::conv1d(row, Tensor::zeros({4, 6, 3}), {}, {.stride = -2});
         }),
         "conv1d: the stride must be positive, it is -2");

  const Tensor up = Tensor::zeros({6, 2, 3, 3});
  const auto transpose = [&](const Tensor& weight, const Tensor& bias, ops::ConvTranspose2dOptions options) {
    return error_of([&] { ops::conv_transpose2d(x, weight, bias, options); });
  };
  expect(transpose(Tensor::zeros({5, 2, 3, 3}), {}, {}),
         "conv_transpose2d: the weight is for 5 channels, and the input has 6");
  expect(transpose(up, {}, {.groups = 4}), "the 6 output channels cannot be divided among 4 groups");
  expect(transpose(up, {}, {.stride = 2, .output_padding = {0, 2}}),
         "output_padding must be at least 0 and less than the stride or the dilation, 2; it is 2");
  expect(transpose(up, {}, {.padding = {0, 6}}), "the result would have size -1 along dimension 3; the padding is 6");
  expect(transpose(up, Tensor::zeros({3}), {.groups = 2}), "bias must be [4], it is [3]");
}

}  // namespace
}  // namespace rondo
