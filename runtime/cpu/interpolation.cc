// Interpolation of images: each pixel of x is read, and each of the result written, once.
#include "rondo/runtime/ops/interpolation.h"

#include <algorithm>
#include <vector>

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/resample.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {

namespace {

// Pixels of `inner` channels that are neighbours in memory: all of an image that is channels last, else one.
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

// The pixels of each result along a dimension, with weights in the dtype of the computation.
template <class C> struct Places {
  std::vector<int32_t> left, right;
  std::vector<C> rest, weight;  // of the left and right pixel; empty: the left one is the result
  Places(const ops::Interpolation& how, int64_t from, int64_t size) {
    if (!how.linear || from == size) {
      for (int64_t i = 0; i < size; ++i) left.push_back(static_cast<int32_t>(i * from / size));
      return;
    }
    const ops::Neighbours n(from, size, how.align_corners);
    left.assign(n.left.begin(), n.left.end());
    right.assign(n.right.begin(), n.right.end());
    for (const double w : n.weight) {
      weight.push_back(static_cast<C>(w));
      rest.push_back(C{1} - weight.back());
    }
  }
  bool is_linear() const { return !weight.empty(); }
};

// Row i of a result: `top` and `bottom` are rows of x, of n numbers.
template <class T, class C> void blend_rows(const T* top, const T* bottom, C rest, C weight, int64_t n, C* out) {
  for (int64_t k = 0; k < n; ++k) out[k] = static_cast<C>(top[k]) * rest + static_cast<C>(bottom[k]) * weight;
}

template <class T, class C> void blend_columns(const C* row, const Places<C>& at, int64_t inner, T* y) {
  const auto size = static_cast<int64_t>(at.left.size());
  const int32_t *left = at.left.data(), *right = at.right.data();
  const C *rest = at.rest.data(), *weight = at.weight.data();
  if (!at.is_linear()) {
    for (int64_t j = 0; j < size; ++j)
      for (int64_t c = 0; c < inner; ++c) y[j * inner + c] = static_cast<T>(row[left[j] * inner + c]);
  } else if (inner == 1) {
    for (int64_t j = 0; j < size; ++j) y[j] = static_cast<T>(row[left[j]] * rest[j] + row[right[j]] * weight[j]);
  } else {
    for (int64_t j = 0; j < size; ++j) {
      const C *a = row + left[j] * inner, *b = row + right[j] * inner, v = rest[j], w = weight[j];
      for (int64_t c = 0; c < inner; ++c) y[j * inner + c] = static_cast<T>(a[c] * v + b[c] * w);
    }
  }
}

// Row r of a result, of W pixels of x. `row`: W * inner numbers of scratch.
template <class T, class C>
void interpolate_row(const T* image, T* y, size_t r, const Places<C>& rows, const Places<C>& columns, int64_t W,
                     int64_t inner, C* row) {
  const T* const top = image + rows.left[r] * W * inner;
  if (rows.is_linear()) {
    blend_rows(top, image + rows.right[r] * W * inner, rows.rest[r], rows.weight[r], W * inner, row);
  } else {
    for (int64_t k = 0; k < W * inner; ++k) row[k] = static_cast<C>(top[k]);
  }
  blend_columns(row, columns, inner, y);
}

// to[k] += from[k] * weight, for n numbers.
template <class T, class C> void add_scaled(const T* from, C weight, int64_t n, C* to) {
  for (int64_t k = 0; k < n; ++k) to[k] += static_cast<C>(from[k]) * weight;
}

// The gradient of channels [begin, end) of an image. Rows first: where x is the smaller image, what is left to add up
// along rows is little. Sums are in the order of the result's rows, then of its columns.
template <class T, class C>
void interpolate_gradient(const T* g, T* gx, const Places<C>& rows, const Places<C>& columns, int64_t H, int64_t W,
                          int64_t inner, int64_t begin, int64_t end, std::vector<C>& by_row, std::vector<C>& line) {
  const auto oh = static_cast<int64_t>(rows.left.size()), ow = static_cast<int64_t>(columns.left.size());
  const int64_t n = end - begin;
  const bool whole = n == inner;
  by_row.assign(static_cast<size_t>(H * ow * n), C{0});
  for (int64_t i = 0; i < oh; ++i) {
    const auto r = static_cast<size_t>(i);
    const T* const from = g + i * ow * inner + begin;
    const auto add_to = [&](int32_t h, C weight) {
      C* const to = by_row.data() + h * ow * n;
      if (whole) return add_scaled(from, weight, ow * n, to);
      for (int64_t j = 0; j < ow; ++j) add_scaled(from + j * inner, weight, n, to + j * n);
    };
    add_to(rows.left[r], rows.is_linear() ? rows.rest[r] : C{1});
    if (rows.is_linear()) add_to(rows.right[r], rows.weight[r]);
  }
  for (int64_t h = 0; h < H; ++h) {
    const C* const from = by_row.data() + h * ow * n;
    line.assign(static_cast<size_t>(W * n), C{0});
    for (int64_t j = 0; j < ow; ++j) {
      const auto at = static_cast<size_t>(j);
      add_scaled(from + j * n, columns.is_linear() ? columns.rest[at] : C{1}, n, line.data() + columns.left[at] * n);
      if (columns.is_linear()) add_scaled(from + j * n, columns.weight[at], n, line.data() + columns.right[at] * n);
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
  const bool last = y.strides() == ops::channels_last_strides(y.sizes());
  const Image x(context.in(0), last);
  const ops::Interpolation how = ops::Interpolation::of(context.attrs);
  const int64_t oh = y.size(2), ow = y.size(3), W = x.width, inner = x.inner;
  visit_floating(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Places<C> rows(how, x.height, oh), columns(how, W, ow);
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (ow * inner));
    parallel_for(x.count * oh, grain, [&](int64_t begin, int64_t end) {
      std::vector<C> row(static_cast<size_t>(W * inner));
      for (int64_t i = begin; i < end; ++i)
        interpolate_row(pointer<T>(x.tensor) + i / oh * x.height * W * inner, pointer<T>(y) + i * ow * inner,
                        static_cast<size_t>(i % oh), rows, columns, W, inner, row.data());
    });
  });
}

void interpolate_grad_kernel(const KernelContext& context) {
  constexpr int64_t kChannels = 16;  // that a thread takes at once: one line of memory
  const NoGrad off;
  const RecorderScope eager(nullptr);
  const Tensor& gx = context.out(0);
  if (gx.numel() == 0) return;
  const bool last = gx.strides() == ops::channels_last_strides(gx.sizes());
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
