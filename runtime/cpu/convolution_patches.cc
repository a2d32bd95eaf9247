#include "rondo/runtime/cpu/convolution_patches.h"

#include <algorithm>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/matmul.h"

namespace rondo::cpu {

namespace {

template <class T> class Patches {
 public:
  Patches(const ConvolutionCall& call, const ConvolutionOperands& operands)
      : call_(call),
        input_(reinterpret_cast<T*>(operands.input)),
        weight_(reinterpret_cast<T*>(operands.weight)),
        bias_(reinterpret_cast<const T*>(operands.bias)),
        output_(reinterpret_cast<T*>(operands.output)),
        channels_(call.channels / call.groups),
        outputs_(call.outputs / call.groups),
        taps_(call.taps()) {
    constexpr int64_t kPatchElements = 1 << 19;
    band_ = std::clamp<int64_t>(kPatchElements / (taps_ * call.output[1]), 1, call.output[0]);
  }

  void forward() const {
    each_image([&](int64_t image) {
      std::vector<T> patches(static_cast<size_t>(band_ * call_.output[1] * taps_));
      each_band([&](int64_t row, int64_t rows, int64_t group) {
        copy_patches<true>(image, row, rows, group, patches.data());
        MatmulCall product(call_.dtype, rows * call_.output[1], outputs_, taps_, {taps_, 1}, {1, taps_},
                           {call_.outputs, 1});
        product.bias = bias_ != nullptr;
        matmul(product, {.a = patches.data(),
                         .b = weight_of(group),
                         .bias = bias_ == nullptr ? nullptr : bias_ + group * outputs_,
                         .c = output_at(image, row, group)});
      });
    });
  }
  void grad_input() const {
    std::fill_n(input_, call_.batch * call_.input[0] * call_.input[1] * call_.channels, T(0));
    each_image([&](int64_t image) {
      std::vector<T> patches(static_cast<size_t>(band_ * call_.output[1] * taps_));
      each_band([&](int64_t row, int64_t rows, int64_t group) {
        const MatmulCall product(call_.dtype, rows * call_.output[1], taps_, outputs_, {call_.outputs, 1}, {taps_, 1},
                                 {taps_, 1});
        matmul(product, {.a = output_at(image, row, group), .b = weight_of(group), .c = patches.data()});
        copy_patches<false>(image, row, rows, group, patches.data());
      });
    });
  }
  void grad_weight() const {
    std::fill_n(weight_, call_.outputs * taps_, T(0));
    std::vector<T> patches(static_cast<size_t>(band_ * call_.output[1] * taps_)),
        sums(static_cast<size_t>(outputs_ * taps_));
    for (int64_t image = 0; image < call_.batch; ++image)
      each_band([&](int64_t row, int64_t rows, int64_t group) {
        copy_patches<true>(image, row, rows, group, patches.data());
        const MatmulCall product(call_.dtype, outputs_, taps_, rows * call_.output[1], {1, call_.outputs}, {taps_, 1},
                                 {taps_, 1});
        matmul(product, {.a = output_at(image, row, group), .b = patches.data(), .c = sums.data()});
        T* const total = weight_of(group);
        for (size_t i = 0; i < sums.size(); ++i) total[i] += sums[i];
      });
  }

 private:
  T* weight_of(int64_t group) const { return weight_ + group * outputs_ * taps_; }
  T* output_at(int64_t image, int64_t row, int64_t group) const {
    return output_ + (image * call_.output[0] + row) * call_.output[1] * call_.outputs + group * outputs_;
  }
  template <class F> void each_image(F fn) const {
    parallel_for(call_.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) fn(image);
    });
  }
  template <class F> void each_band(F fn) const {
    for (int64_t row = 0; row < call_.output[0]; row += band_)
      for (int64_t group = 0; group < call_.groups; ++group) fn(row, std::min(band_, call_.output[0] - row), group);
  }

  // If kGathers is true, copies to `patch` the input pixels that output rows [row, row + rows) read, with zeros for
  // pixels outside of the image. If it is false, adds `patch` back to these input pixels.
  template <bool kGathers> void copy_patches(int64_t image, int64_t row, int64_t rows, int64_t group, T* patch) const {
    for (int64_t y = row; y < row + rows; ++y)
      for (int64_t x = 0; x < call_.output[1]; ++x)
        for (int64_t i = 0; i < call_.kernel[0]; ++i)
          for (int64_t j = 0; j < call_.kernel[1]; ++j, patch += channels_) {
            const int64_t h = y * call_.stride[0] - call_.padding_before[0] + i * call_.dilation[0],
                          w = x * call_.stride[1] - call_.padding_before[1] + j * call_.dilation[1];
            const bool inside = h >= 0 && h < call_.input[0] && w >= 0 && w < call_.input[1];
            if (!inside) {
              if (kGathers) std::fill_n(patch, channels_, T(0));
              continue;
            }
            T* const pixel = input_ + ((image * call_.input[0] + h) * call_.input[1] + w) * call_.channels +
                             group * channels_;
            if (kGathers) std::copy_n(pixel, channels_, patch);
            else
              for (int64_t c = 0; c < channels_; ++c) pixel[c] += patch[c];
          }
  }

  const ConvolutionCall& call_;
  T* const input_;
  T* const weight_;
  const T* const bias_;
  T* const output_;
  const int64_t channels_, outputs_, taps_;  // of one group
  int64_t band_;                             // output rows that are processed together
};

template <class T> void run_patches(const ConvolutionCall& call, const ConvolutionOperands& operands) {
  const Patches<T> patches(call, operands);
  switch (call.computes) {
    case ConvolutionCall::Computes::kOutput: return patches.forward();
    case ConvolutionCall::Computes::kInput: return patches.grad_input();
    case ConvolutionCall::Computes::kWeight: return patches.grad_weight();
  }
}

}  // namespace

void convolve_patches(const ConvolutionCall& call, const ConvolutionOperands& operands) {
  if (call.dtype == kF64) run_patches<double>(call, operands);
  else run_patches<float>(call, operands);
}

}  // namespace rondo::cpu
