// Pooling, interpolation, padding and pixel_shuffle, against loops over pixels; recorded values: ops_reference_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::error_of;
using test::same_bits;
using test::uniform;

constexpr ops::InterpolateMode kBilinear = ops::InterpolateMode::kBilinear, kBicubic = ops::InterpolateMode::kBicubic;
Tensor last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

// First and second derivatives along random directions, against central differences.
void expect_derivatives(const Tensor& x0, const std::function<Tensor(const Tensor&)>& run) {
  const Tensor along = uniform(x0.sizes(), -1, 1, 3), toward = uniform(x0.sizes(), -1, 1, 4);
  const auto leaf = [](const Tensor& t) {
    Tensor copy = t.clone();
    return copy.requires_grad_();
  };
  const auto loss = [&](const Tensor& x) {
    const Tensor y = run(x);
    return ops::sum(y * y * y);
  };
  const auto slope = [&](const Tensor& x, bool create_graph) {
    const Tensor value = loss(x);
    const std::vector<Tensor> grads = autograd::grad({&value, 1}, {&x, 1}, {}, create_graph, create_graph);
    return ops::sum(grads[0] * along);
  };
  constexpr double kStep = 1e-5;
  const Tensor x = leaf(x0);
  const double first = slope(x, false).item();
  const auto difference = [&](const std::function<double(double)>& at) {
    return (at(kStep) - at(-kStep)) / (2 * kStep);
  };
  const double numeric = difference([&](double s) { return loss(x0 + along * s).item(); });
  EXPECT_NEAR(first, numeric, 1e-6 * (1 + std::abs(numeric)));
  const Tensor s = slope(x, true);
  const std::vector<Tensor> second = autograd::grad({&s, 1}, {&x, 1});
  const double change = difference([&](double t) { return slope(leaf(x0 + toward * t), false).item(); });
  EXPECT_NEAR(ops::sum(second[0] * toward).item(), change, 1e-5 * (1 + std::abs(change)));
}

TEST(PixelOps, Derivatives) {
  const Tensor x = uniform({2, 3, 6, 7}, -1, 1, 1);
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> cases[] = {
      {"max_pool2d",
       [](const Tensor& t) {
         return ops::max_pool2d(t, 3, {.stride = {{2, 1}}, .padding = 1});
       }},
      {"avg_pool2d",
       [](const Tensor& t) {
         return ops::avg_pool2d(t, {3, 2}, {.padding = 1, .ceil_mode = true});
       }},
      {"avg_pool2d, inside",
       [](const Tensor& t) { return ops::avg_pool2d(t, 3, {.stride = 2, .padding = 1, .count_include_pad = false}); }},
      {"adaptive",
       [](const Tensor& t) {
         return ops::adaptive_avg_pool2d(t, {4, 3});
       }},
      {"adaptive, whole windows",
       [](const Tensor& t) {
         return ops::adaptive_avg_pool2d(t, {3, 7});
       }},
      {"adaptive, one", [](const Tensor& t) { return ops::adaptive_avg_pool2d(t, 1); }},
      {"nearest",
       [](const Tensor& t) {
         return ops::interpolate(t, {9, 4});
       }},
      {"bilinear",
       [](const Tensor& t) {
         return ops::interpolate(t, {9, 4}, {.mode = ops::InterpolateMode::kBilinear});
       }},
      {"bilinear, corners",
       [](const Tensor& t) {
         return ops::interpolate(t, {4, 15}, {.mode = ops::InterpolateMode::kBilinear, .align_corners = true});
       }},
      {"bilinear, antialias",
       [](const Tensor& t) {
         return ops::interpolate(t, {2, 9}, {.mode = ops::InterpolateMode::kBilinear, .antialias = true});
       }},
      {"bicubic",
       [](const Tensor& t) {
         return ops::interpolate(t, {9, 4}, {.mode = ops::InterpolateMode::kBicubic});
       }},
      {"bicubic, corners",
       [](const Tensor& t) {
         return ops::interpolate(t, {4, 15}, {.mode = ops::InterpolateMode::kBicubic, .align_corners = true});
       }},
      {"bicubic, antialias",
       [](const Tensor& t) {
         return ops::interpolate(t, {9, 2}, {.mode = ops::InterpolateMode::kBicubic, .antialias = true});
       }},
      {"constant",
       [](const Tensor& t) {
         return ops::pad(t, {1, 2, -1, 3}, ops::PadMode::kConstant, 0.5);
       }},
      {"reflect",
       [](const Tensor& t) {
         return ops::pad(t, {2, 1, 0, 5}, ops::PadMode::kReflect);
       }},
      {"replicate",
       [](const Tensor& t) {
         return ops::pad(t, {2, 9, 1, 0}, ops::PadMode::kReplicate);
       }},
      {"relu6", [](const Tensor& t) { return ops::relu6(t * 9); }},
      {"hardswish", [](const Tensor& t) { return ops::hardswish(t * 5); }},
  };
  for (const auto& [name, run] : cases) {
    SCOPED_TRACE(name);
    expect_derivatives(x, run);
  }
  expect_derivatives(uniform({1, 8, 2, 3}, -1, 1, 2), [](const Tensor& t) { return ops::pixel_shuffle(t, 2); });
}

TEST(PixelOps, EmptyBatches) {
  const Tensor x = Tensor::zeros({0, 4, 6, 6});
  const Tensor results[] = {ops::max_pool2d(x, 2), ops::avg_pool2d(x, 2), ops::adaptive_avg_pool2d(x, 3),
                            ops::interpolate(x, 3), ops::pad(x, {1, 2})};
  const char* const sizes[] = {"[0, 4, 3, 3]", "[0, 4, 3, 3]", "[0, 4, 3, 3]", "[0, 4, 3, 3]", "[0, 4, 6, 9]"};
  for (size_t i = 0; i < std::size(results); ++i) EXPECT_EQ(to_string(results[i].sizes()), sizes[i]) << i;
  EXPECT_EQ(to_string(ops::pixel_shuffle(x, 2).sizes()), "[0, 1, 12, 12]");
}

TEST(PixelOps, MaximaKeepTheLayoutAndNaN) {
  const Tensor x = uniform({2, 5, 9, 8}, -1, 1, 1).to(kF32);
  const Tensor y = ops::max_pool2d(x, 3, {.stride = 2, .padding = 1}),
               z = ops::max_pool2d(last(x), 3, {.stride = 2, .padding = 1});
  EXPECT_TRUE(is_channels_last(z.sizes(), z.strides()));
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_TRUE(same_bits(y, z));
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Tensor odd = Tensor::from({1, nan, 3, -inf, -inf, -inf}, {1, 1, 2, 3}).to(kF32);
  const std::vector<double> most = ops::max_pool2d(odd, {1, 2}, {.stride = 1}).to_vector<double>();
  EXPECT_TRUE(std::isnan(most[0]) && std::isnan(most[1]));
  EXPECT_EQ(most[2], -inf);
}

// As in PyTorch: a result is dense, and a write to it does not reach x.
TEST(PixelOps, ResultsAreDenseAndShareNoMemoryWithTheOperand) {
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> cases[] = {
      {"pad by nothing",
       [](const Tensor& t) {
         return ops::pad(t, {0, 0});
       }},
      {"crop",
       [](const Tensor& t) {
         return ops::pad(t, {-1, 0, -1, -1});
       }},
      {"crop and pad",
       [](const Tensor& t) {
         return ops::pad(t, {-1, 2});
       }},
      {"reflect nothing",
       [](const Tensor& t) {
         return ops::pad(t, {0, 0}, ops::PadMode::kReflect);
       }},
      {"reflect",
       [](const Tensor& t) {
         return ops::pad(t, {1, 2, 1, 0}, ops::PadMode::kReflect);
       }},
      {"replicate",
       [](const Tensor& t) {
         return ops::pad(t, {1, 0, 0, 3}, ops::PadMode::kReplicate);
       }},
      {"same size",
       [](const Tensor& t) {
         return ops::interpolate(t, {4, 5});
       }},
      {"same size, bilinear",
       [](const Tensor& t) {
         return ops::interpolate(t, {4, 5}, {.mode = kBilinear});
       }},
      {"nearest",
       [](const Tensor& t) {
         return ops::interpolate(t, {8, 3});
       }},
      {"nearest, one dimension",
       [](const Tensor& t) {
         return ops::interpolate(t, {4, 9});
       }},
      {"bilinear",
       [](const Tensor& t) {
         return ops::interpolate(t, {8, 5}, {.mode = kBilinear});
       }},
      {"same size, bicubic",
       [](const Tensor& t) {
         return ops::interpolate(t, {4, 5}, {.mode = kBicubic, .antialias = true});
       }},
      {"bicubic",
       [](const Tensor& t) {
         return ops::interpolate(t, {2, 5}, {.mode = kBicubic, .antialias = true});
       }},
  };
  const Tensor x = uniform({2, 3, 4, 5}, -1, 1, 1).to(kF32);
  for (const auto& [name, run] : cases)
    for (const bool channels_last : {false, true}) {
      const Tensor in = channels_last ? last(x) : x.clone();
      Tensor y = run(in);
      const Tensor wanted = run(x.clone());
      EXPECT_TRUE(same_bits(y, wanted)) << name;
      EXPECT_TRUE(channels_last ? is_channels_last(y.sizes(), y.strides()) : y.is_contiguous()) << name;
      y.fill_(7);
      EXPECT_TRUE(same_bits(in, x)) << name;
    }
}

TEST(PixelOps, PaddingOfAnEmptyBatchKeepsItsHistory) {
  Tensor x = Tensor::zeros({0, 2, 3}).requires_grad_();
  Tensor y = ops::pad(x, {1, 1, 0, 2});
  EXPECT_EQ(to_string(y.sizes()), "[0, 4, 5]");
  y.sum().backward();
  EXPECT_EQ(to_string(x.grad().sizes()), "[0, 2, 3]");
  Tensor row = Tensor::zeros({2, 0}).requires_grad_();
  y = ops::pad(row, {1, 2}, ops::PadMode::kConstant, 4);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(6, 4.0f));
  y.sum().backward();
  EXPECT_EQ(to_string(row.grad().sizes()), "[2, 0]");
}

// Results of random sizes and options, in every dtype and layout, are those of a sum over all pixels in f64.
TEST(PixelOps, RandomInterpolationsEqualASumOverAllPixels) {
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 60; ++round) {
    const ops::InterpolateOptions how{
        .mode = below(2) == 0 ? kBilinear : kBicubic, .align_corners = below(2) == 0, .antialias = below(2) == 0};
    const auto size = [&] { return 1 + (below(2) == 0 ? below(6) : below(40)); };
    const Dims from = {1 + below(2), 1 + below(5), size(), size()};
    const ops::Extent to = {size(), size()};
    const Tensor x = uniform(from, -1, 1, static_cast<uint64_t>(round));
    // (size, from): the weight of each pixel in each result. The definition, from PyTorch's documentation and Pillow's.
    const auto matrix = [&](int64_t n, int64_t results) {
      std::vector<double> weights;
      const double distance = !how.align_corners ? static_cast<double>(n) / static_cast<double>(results)
                              : results > 1      ? static_cast<double>(n - 1) / static_cast<double>(results - 1)
                                                 : 0;
      const bool cubic = how.mode == kBicubic;
      const double unit = how.antialias ? std::max(distance, 1.0) : 1, a = how.antialias ? -0.5 : -0.75;
      for (int64_t i = 0; i < results; ++i) {
        const auto at = static_cast<double>(i);
        double place = how.align_corners && !how.antialias ? at * distance : (at + 0.5) * distance - 0.5;
        if (!cubic && !how.antialias) place = std::max(place, 0.0);
        std::vector<double> row(static_cast<size_t>(n));
        double sum = 0;
        const int64_t around = how.antialias ? 0 : 3;  // pixels beyond the border are those at it
        for (int64_t p = -around; p < n + around; ++p) {
          const double d = std::abs(static_cast<double>(p) - place) / unit;
          const double w = !cubic  ? std::max(0.0, 1 - d)
                           : d < 1 ? (a + 2) * d * d * d - (a + 3) * d * d + 1
                           : d < 2 ? a * (d * d * d - 5 * d * d + 8 * d - 4)
                                   : 0;
          row[static_cast<size_t>(std::clamp<int64_t>(p, 0, n - 1))] += n == results ? (p == i ? 1 : 0) : w;
          sum += n == results ? (p == i ? 1 : 0) : w;
        }
        for (const double w : row) weights.push_back(w / sum);
      }
      return Tensor::from(weights, {results, n});
    };
    const Tensor rows = matrix(from[2], to[0]), columns = matrix(from[3], to[1]).transpose(0, 1).contiguous();
    const Tensor want = ops::matmul(ops::matmul(rows, x), columns);
    for (const DType dtype : {kF64, kF32, kBF16, kF16}) {
      const double within = dtype == kF64 ? 1e-13 : dtype == kF32 ? 4e-6 : dtype == kF16 ? 3e-3 : 2e-2;
      for (const bool channels_last : {false, true}) {
        const Tensor in = channels_last ? last(x.to(dtype)) : x.to(dtype);
        const double error = ops::max(ops::abs(ops::interpolate(in, {to[0], to[1]}, how).to(kF64) - want)).item();
        EXPECT_LT(error, within) << name_of(dtype) << " " << to_string(from) << " to " << to[0] << " " << to[1];
      }
    }
  }
}

// Masks keep their classes.
TEST(PixelOps, NearestPixelsOfIntegers) {
  for (DType dtype : {kU8, kI32, kI64, kBool}) {
    const Tensor mask = Tensor::from<int64_t>({0, 1, 1, 0, 0, 1}, {1, 1, 2, 3}).to(dtype);
    const Tensor y = ops::interpolate(mask, {4, 2});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(y.to_vector<int64_t>(), std::vector<int64_t>({0, 1, 0, 1, 0, 0, 0, 0}));
  }
}

TEST(PixelOps, ErrorsNameTheNumbers) {
  const Tensor x = Tensor::zeros({1, 6, 4, 5});
  const auto expect = [](const std::string& error, std::string_view part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_NE(error.find("pixel_ops_test.cc:"), std::string::npos) << error;
  };
  expect(error_of([&] { ops::max_pool2d(x, 3, {.padding = 2}); }),
         "max_pool2d: the padding may be at most half of the kernel, 1, it is 2");
  expect(error_of([&] { ops::avg_pool2d(x, {5, 2}); }), "the kernel [5, 2] is larger than the padded input [4, 5]");
  expect(error_of([&] { ops::max_pool2d(x, 2, {.stride = {{0, 1}}}); }), "the stride must be positive, it is [0, 1]");
  expect(error_of([&] { ops::max_pool2d(Tensor::zeros({4, 5}), 2); }), "needs x (B, C, H, W); got x [4, 5]");
  expect(error_of([&] {
           ops::max_pool2d(x.slice(1, {0, 1}).slice(2, {0, 1}).expand({1, 1, 1 << 29, 5}), 2);
         }),
         "an image has 2^31 pixels or more");
  expect(error_of([&] { ops::adaptive_avg_pool2d(x, {0, 1}); }), "size [0, 1]");
  expect(error_of([&] { ops::interpolate(x, {3, 0}); }), "sizes must be positive: [1, 6, 4, 5] to [3, 0]");
  expect(error_of([&] {
           ops::interpolate(x, {3, int64_t{1} << 40});
         }),
         "a size may be at most 268435456: [1, 6, 4, 5]");
  expect(error_of([&] { ops::interpolate(x.to(kU8), 3, {.mode = kBilinear}); }), "floating point, got u8; kNearest");
  expect(error_of([&] { ops::interpolate(x.to(kU8), 3, {.mode = kBicubic}); }), "bicubic interpolation needs floating");
  expect(error_of([&] { ops::interpolate(x, 3, {.align_corners = true}); }), "align_corners is for bilinear");
  expect(error_of([&] { ops::interpolate(x, 3, {.antialias = true}); }), "antialias is for bilinear");
  expect(error_of([&] {
           ops::pad(x, {5, 0}, ops::PadMode::kReflect);
         }),
         "pad: dimension 3 has 5 elements to pad from, too few; got x [1, 6, 4, 5], amounts [5, 0]");
  expect(error_of([&] { ops::pad(x, {-3, -3}); }), "dimension 3 cannot be changed by -3 and -3");
  expect(error_of([&] { ops::pad(x, {1}); }), "needs two amounts");
  expect(error_of([&] { ops::pad(x, {-1, 0}, ops::PadMode::kReplicate); }), "amounts may not be negative here");
  expect(error_of([&] { ops::pixel_shuffle(x, 2); }), "the square of the factor 2 must divide the channels");
}

}  // namespace
}  // namespace rondo
