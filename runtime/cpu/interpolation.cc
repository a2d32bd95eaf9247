// Interpolation of images: for each output row, input rows are blended into one row, and then its columns are blended.
#include "rondo/runtime/ops/interpolation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::cpu {

namespace {

// Images as dense pixels of `inner` adjacent channels: all channels if the image is channels last, else one.
struct Image {
  Tensor tensor;  // dense
  int64_t count, height, width, inner;
  Image(const Tensor& given, bool last)
      : tensor((last ? given.permute({0, 2, 3, 1}) : given).contiguous()),
        count(last ? given.size(0) : given.size(0) * given.size(1)),
        height(given.size(2)),
        width(given.size(3)),
        inner(last ? given.size(1) : 1) {}
};

// Along one dimension: the pixels that each output pixel reads, and their weights in the compute dtype. Both are stored
// as tables (width, size).
template <class C> struct Places {
  int64_t width, size;
  std::vector<int32_t> pixels;
  std::vector<C> weights;
  Places(const ops::Interpolation& how, int64_t from, int64_t to) : Places(ops::Taps(from, to, how)) {}
  explicit Places(ops::Taps taps)
      : width(taps.width),
        size(taps.size),
        pixels(std::move(taps.pixel)),
        weights(taps.weight.begin(), taps.weight.end()) {}
  const int32_t* pixel(int64_t tap) const { return pixels.data() + tap * size; }
  const C* weight(int64_t tap) const { return weights.data() + tap * size; }
};

// For k in [0, n): set_scaled sets to[k] = from[k] * weight; add_scaled adds: to[k] += from[k] * weight.
template <class T, class C> void set_scaled(const T* from, C weight, int64_t n, C* __restrict to) {
  for (int64_t k = 0; k < n; ++k) to[k] = static_cast<C>(from[k]) * weight;
}
template <class T, class C> void add_scaled(const T* from, C weight, int64_t n, C* __restrict to) {
  for (int64_t k = 0; k < n; ++k) to[k] += static_cast<C>(from[k]) * weight;
}
// Sets to[k] to a[k] * v + b[k] * w.
template <class T, class C, class To> void blend(const T* a, const T* b, C v, C w, int64_t n, To* __restrict to) {
  for (int64_t k = 0; k < n; ++k) to[k] = static_cast<To>(static_cast<C>(a[k]) * v + static_cast<C>(b[k]) * w);
}
template <class From, class To> void convert(const From* from, int64_t n, To* __restrict to) {
  for (int64_t k = 0; k < n; ++k) to[k] = static_cast<To>(from[k]);
}

// Computes row r of the output by blending input rows of n numbers.
template <class T, class C> void blend_rows(const T* image, const Places<C>& at, int64_t r, int64_t n, C* out) {
  const auto row = [&](int64_t t) { return image + at.pixel(t)[r] * n; };
  if (at.width == 1) return convert(row(0), n, out);
  if (at.width == 2) return blend(row(0), row(1), at.weight(0)[r], at.weight(1)[r], n, out);
  set_scaled(row(0), at.weight(0)[r], n, out);
  for (int64_t t = 1; t < at.width; ++t) add_scaled(row(t), at.weight(t)[r], n, out);
}

// Computes an output row y from a blended row. `pixel`: scratch memory for `inner` numbers.
template <class T, class C>
void blend_columns(const C* row, const Places<C>& at, int64_t inner, C* pixel, T* __restrict y) {
  const int64_t size = at.size;
  const int32_t *left = at.pixel(0), *right = at.pixel(at.width - 1);
  const C *v = at.weight(0), *w = at.weight(at.width - 1);
  if (at.width == 1 && inner == 1) {
    for (int64_t j = 0; j < size; ++j) y[j] = static_cast<T>(row[left[j]]);
  } else if (at.width == 1) {
    for (int64_t j = 0; j < size; ++j) convert(row + left[j] * inner, inner, y + j * inner);
  } else if (at.width == 2 && inner == 1) {
    for (int64_t j = 0; j < size; ++j) y[j] = static_cast<T>(row[left[j]] * v[j] + row[right[j]] * w[j]);
  } else if (at.width == 2) {
    for (int64_t j = 0; j < size; ++j)
      blend(row + left[j] * inner, row + right[j] * inner, v[j], w[j], inner, y + j * inner);
  } else {
    for (int64_t j = 0; j < size; ++j) {
      set_scaled(row + left[j] * inner, v[j], inner, pixel);
      for (int64_t t = 1; t < at.width; ++t) add_scaled(row + at.pixel(t)[j] * inner, at.weight(t)[j], inner, pixel);
      convert(pixel, inner, y + j * inner);
    }
  }
}

// Computes the gradient for channels [begin, end) of an image. Adds up rows first: if x is the smaller image, few
// numbers are then left for the sums along rows. Sums are in the order of the output's rows, then of its columns.
template <class T, class C>
void interpolate_gradient(const T* g, T* gx, const Places<C>& rows, const Places<C>& columns, int64_t H, int64_t W,
                          int64_t inner, int64_t begin, int64_t end, std::vector<C>& by_row, std::vector<C>& line) {
  const int64_t oh = rows.size, ow = columns.size, n = end - begin;
  const bool whole = n == inner;
  by_row.assign(static_cast<size_t>(H * ow * n), C{0});
  for (int64_t i = 0; i < oh; ++i) {
    const T* const from = g + i * ow * inner + begin;
    for (int64_t t = 0; t < rows.width; ++t) {
      C* const to = by_row.data() + rows.pixel(t)[i] * ow * n;
      const C weight = rows.weight(t)[i];
      if (whole) add_scaled(from, weight, ow * n, to);
      else
        for (int64_t j = 0; j < ow; ++j) add_scaled(from + j * inner, weight, n, to + j * n);
    }
  }
  for (int64_t h = 0; h < H; ++h) {
    const C* const from = by_row.data() + h * ow * n;
    line.assign(static_cast<size_t>(W * n), C{0});
    for (int64_t t = 0; t < columns.width; ++t) {
      const int32_t* const pixel = columns.pixel(t);
      const C* const weight = columns.weight(t);
      C* const sums = line.data();
      if (n == 1)
        for (int64_t j = 0; j < ow; ++j) sums[pixel[j]] += from[j] * weight[j];
      else
        for (int64_t j = 0; j < ow; ++j) add_scaled(from + j * n, weight[j], n, sums + pixel[j] * n);
    }
    T* const to = gx + h * W * inner + begin;
    for (int64_t w = 0; w < W; ++w)
      for (int64_t c = 0; c < n; ++c) to[w * inner + c] = static_cast<T>(line[static_cast<size_t>(w * n + c)]);
  }
}

}  // namespace

void interpolate_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  const Tensor& y = context.out(0);
  if (y.numel() == 0) return;
  const bool last = y.strides() == channels_last_strides(y.sizes());
  const Image x(context.in(0), last);
  const ops::Interpolation how = ops::Interpolation::of(context.attrs);
  const int64_t oh = y.size(2), ow = y.size(3), W = x.width, inner = x.inner;
  visit_floating(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Places<C> rows(how, x.height, oh), columns(how, W, ow);
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (ow * inner));
    parallel_for(x.count * oh, grain, [&](int64_t begin, int64_t end) {
      std::vector<C> row(static_cast<size_t>(W * inner)), pixel(static_cast<size_t>(inner));
      for (int64_t i = begin; i < end; ++i) {
        blend_rows(pointer<T>(x.tensor) + i / oh * x.height * W * inner, rows, i % oh, W * inner, row.data());
        blend_columns(row.data(), columns, inner, pixel.data(), pointer<T>(y) + i * ow * inner);
      }
    });
  });
}

void interpolate_grad_kernel(const KernelContext& context) {
  constexpr int64_t kChannels = 16;  // channels per task: one cache line of f32
  const NoGrad off;
  const RecorderScope eager(nullptr);
  const Tensor& gx = context.out(0);
  if (gx.numel() == 0) return;
  const bool last = gx.strides() == channels_last_strides(gx.sizes());
  const Image g(context.in(0), last);
  const ops::Interpolation how = ops::Interpolation::of(context.attrs);
  const int64_t H = gx.size(2), W = gx.size(3), inner = g.inner, chunks = (inner + kChannels - 1) / kChannels;
  visit_floating(gx.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Places<C> rows(how, H, g.height), columns(how, W, g.width);
    const int64_t work = g.height * g.width * std::min(inner, kChannels);
    parallel_for(g.count * chunks, std::max<int64_t>(1, kElementwiseGrain / work), [&](int64_t begin, int64_t end) {
      std::vector<C> by_row, line;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / chunks, first = i % chunks * kChannels;
        interpolate_gradient(pointer<T>(g.tensor) + image * g.height * g.width * inner,
                             pointer<T>(gx) + image * H * W * inner, rows, columns, H, W, inner, first,
                             std::min(inner, first + kChannels), by_row, line);
      }
    });
  });
}

}  // namespace rondo::cpu
