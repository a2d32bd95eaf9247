// Maxima over windows of images, and their positions.
#include <algorithm>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/simd.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::cpu {

namespace {

// The pixels that a window reads along one dimension: every `step`-th in [begin, end).
struct WindowRange {
  int64_t begin, end, step;
};
std::vector<WindowRange> window_ranges(const ops::Convolution& how, int d, int64_t kernel, int64_t n, int64_t windows) {
  std::vector<WindowRange> ranges;
  const int64_t step = how.dilation[static_cast<size_t>(d)];
  for (int64_t i = 0; i < windows; ++i) {
    const int64_t first = i * how.stride[static_cast<size_t>(d)] - how.before[static_cast<size_t>(d)];
    const int64_t begin = first >= 0 ? first : first + (-first + step - 1) / step * step;
    ranges.push_back({begin, std::min(n, first + (kernel - 1) * step + 1), step});
  }
  return ranges;
}

// True if `value` replaces `best`: NaN beats every number, and among equal values the first one stays.
template <class T> [[gnu::always_inline]] inline bool beats(T value, T best) {
  return value > best || (value != value && best == best);
}

// Calls fn(pixel) for each pixel of a window; rows have W pixels.
template <class Fn>
[[gnu::always_inline]] inline void each_pixel(const WindowRange& rows, const WindowRange& columns, int64_t W, Fn fn) {
  for (int64_t h = rows.begin; h < rows.end; h += rows.step)
    for (int64_t w = columns.begin; w < columns.end; w += columns.step) fn(h * W + w);
}

// Pools one row of windows. A pixel has `inner` adjacent channels: all of a channels-last image, else one. Rows of the
// image have W pixels.
template <class T>
void max_of_windows(const T* x, T* y, int64_t* place, const WindowRange& rows, const std::vector<WindowRange>& columns,
                    int64_t W, int64_t inner) {
  using A = Compute<T>;
  constexpr int kN = kWidth<A>;
  using Places = IntegerVector<A>;  // integers as wide as A suffice: images have fewer than 2^31 pixels
  for (const WindowRange& column : columns) {
    const int64_t first = rows.begin * W + column.begin;
    int64_t c = 0;
    for (; c + kN <= inner; c += kN) {
      Vector<A> best = load(x + first * inner + c);
      Places at = Places{} + static_cast<std::remove_reference_t<decltype(Places{}[0])>>(first);
      each_pixel(rows, column, W, [&](int64_t pixel) {
        const Vector<A> value = load(x + pixel * inner + c);
        const Places wins = (value > best) | ((value != value) & (best == best));
        best = wins ? value : best;
        at = wins ? Places{} + static_cast<std::remove_reference_t<decltype(Places{}[0])>>(pixel) : at;
      });
      store(y + c, best);
      for (int i = 0; i < kN; ++i) place[c + i] = at[i];
    }
    for (; c < inner; ++c) {
      T best = x[first * inner + c];
      int64_t at = first;
      each_pixel(rows, column, W, [&](int64_t pixel) {
        const T value = x[pixel * inner + c];
        const bool wins = beats<ComputeType<T>>(value, best);
        best = wins ? value : best;
        at = wins ? pixel : at;
      });
      y[c] = best;
      place[c] = at;
    }
    y += inner;
    place += inner;
  }
}

}  // namespace

void max_pool2d_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  const Tensor &given = context.in(0), &y = context.out(0), &place = context.out(1);
  if (y.numel() == 0) return;
  const bool last = y.strides() == channels_last_strides(y.sizes());
  const Tensor x = (last ? given.permute({0, 2, 3, 1}) : given).contiguous();
  const auto how = ops::Convolution::of(context.attrs);
  const auto kernel = ops::Convolution::size_in(context.attrs);
  const int64_t B = given.size(0), C = given.size(1), H = given.size(2), W = given.size(3), oh = y.size(2),
                ow = y.size(3);
  const auto rows = window_ranges(how, 0, kernel[0], H, oh), columns = window_ranges(how, 1, kernel[1], W, ow);
  const int64_t images = last ? B : B * C, inner = last ? C : 1;
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (ow * inner * kernel[0] * kernel[1]));
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(images * oh, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        max_of_windows(pointer<T>(x) + i / oh * H * W * inner, pointer<T>(y) + i * ow * inner,
                       pointer<int64_t>(place) + i * ow * inner, rows[static_cast<size_t>(i % oh)], columns, W, inner);
    });
  });
}

}  // namespace rondo::cpu
