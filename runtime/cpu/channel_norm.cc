// batch_norm and its gradient, with the same bits as their decompositions (ops/channel_norm.cc). The forward reads x
// twice: for the statistics, and to write y. The backward reads gradient and x twice: for the sums, and to write dx.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/column_reduce.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/channel_norm.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

// A dense x, seen as (batch, channels, pixels). If pixels is 1, for example because the channels are the last
// dimension, the channels of a row are adjacent in memory: by_columns().
struct ChannelLayout {
  int64_t batch, channels, pixels;
  bool by_columns() const { return pixels == 1; }
};

// Returns nullopt if x is empty, or if it has a single channel: the decomposition then sums x as one row, in another
// order.
std::optional<ChannelLayout> channel_layout(const Dims& x, const Attrs& attrs) {
  const int dim = ops::channel_dim(attrs);
  if (x.numel() == 0 || x[dim] == 1) return std::nullopt;
  ChannelLayout layout{1, x[dim], 1};
  for (int d = 0; d < x.rank(); ++d)
    if (d != dim) (d < dim ? layout.batch : layout.pixels) *= x[d];
  return layout;
}

void run_channel_parts(const KernelContext& context) {
  std::vector<Tensor> inputs;
  for (const Tensor* input : context.inputs) inputs.push_back(*input);
  std::array<Tensor, 3> made;
  context.op.decompose(inputs, context.attrs, made);
  for (size_t i = 0; i < made.size(); ++i) context.outputs[i].copy_(made[i]);
}

// Returns the numbers of `t`, one for each channel, in the compute type. Empty if `t` is undefined.
template <class C> std::vector<C> numbers_of(const Tensor& t) {
  if (!t.defined()) return {};
  const Tensor wide = t.to(dtype_of<C>).contiguous();
  return {pointer<C>(wide), pointer<C>(wide) + wide.numel()};
}
template <class C> void write_numbers(const std::vector<C>& numbers, Tensor& to) {
  visit_floating(to.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::transform(numbers.begin(), numbers.end(), pointer<T>(to), [](C v) { return static_cast<T>(v); });
  });
}

// Calls fn(offset of the first element, its channel, length) for each run of adjacent elements. With by_columns() a run
// is a row of all channels, else it is the pixels of one channel.
template <class Fn> void for_each_run_of_channels(const ChannelLayout& layout, Fn fn) {
  const int64_t runs = layout.by_columns() ? layout.batch : layout.batch * layout.channels,
                length = layout.by_columns() ? layout.channels : layout.pixels;
  parallel_for(runs, std::max<int64_t>(1, kElementwiseGrain / length), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) fn(k * length, layout.by_columns() ? 0 : k % layout.channels, length);
  });
}

template <class T, class C>
void normalise_channels(const ChannelLayout& layout, const T* x, const std::vector<C>& mean,
                        const std::vector<C>& scale, const std::vector<C>& bias, T* y) {
  const auto run = [&](auto value) {
    for_each_run_of_channels(layout, [&](int64_t at, int64_t channel, int64_t n) {
      const T* const from = x + at;
      T* const to = y + at;
      if (layout.by_columns()) {
        for (int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(value(static_cast<C>(from[c]), c));
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(value(static_cast<C>(from[i]), channel));
      }
    });
  };
  const C *const m = mean.data(), *const s = scale.data(), *const b = bias.data();
  if (bias.empty()) run([=](C v, int64_t c) { return (v - m[c]) * s[c]; });
  else run([=](C v, int64_t c) { return (v - m[c]) * s[c] + b[c]; });
}

// Sums, for each channel, the gradient, and the gradient times the centred x. The order is that of Note [Runs] in
// ops/reduction_order.h.
template <class T, class C>
void sum_channels(const ChannelLayout& layout, const T* grad, const T* x, const std::vector<C>& mean,
                  std::vector<C>& sum_g, std::vector<C>& sum_gx) {
  const auto [batch, channels, pixels] = layout;
  const auto wide = [](T v) { return static_cast<C>(v); };
  if (layout.by_columns()) {
    // Note [Column order]: chunks of rows are summed, and these sums are added in order.
    const int64_t chunk = column_chunk_rows(batch), chunks = (batch + chunk - 1) / chunk;
    std::vector<C> parts(static_cast<size_t>(2 * chunks * channels));
    parallel_for(chunks, std::max<int64_t>(1, kElementwiseGrain / (chunk * channels)), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        C *const of_g = parts.data() + 2 * k * channels, *const of_gx = of_g + channels;
        const C* const m = mean.data();
        for (int64_t r = k * chunk; r < std::min(batch, (k + 1) * chunk); ++r) {
          const T *const g = grad + r * channels, *const from = x + r * channels;
          for (int64_t c = 0; c < channels; ++c) {
            of_g[c] += wide(g[c]);
            of_gx[c] += wide(g[c]) * (wide(from[c]) - m[c]);
          }
        }
      }
    });
    for (int64_t k = 0; k < chunks; ++k)
      for (int64_t c = 0; c < channels; ++c) {
        sum_g[static_cast<size_t>(c)] += parts[static_cast<size_t>(2 * k * channels + c)];
        sum_gx[static_cast<size_t>(c)] += parts[static_cast<size_t>((2 * k + 1) * channels + c)];
      }
    return;
  }
  parallel_for(channels, std::max<int64_t>(1, kElementwiseGrain / (batch * pixels)), [&](int64_t begin, int64_t end) {
    std::vector<C> part_g(static_cast<size_t>(batch)), part_gx(static_cast<size_t>(batch));
    for (int64_t c = begin; c < end; ++c) {
      const C m = mean[static_cast<size_t>(c)];
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t at = (b * channels + c) * pixels;
        const T *const g = grad + at, *const from = x + at;
        part_g[static_cast<size_t>(b)] = sum_row<C>(pixels, [=](int64_t i) { return wide(g[i]); });
        part_gx[static_cast<size_t>(b)] = sum_row<C>(pixels,
                                                     [=](int64_t i) { return wide(g[i]) * (wide(from[i]) - m); });
      }
      // With one example there is nothing to add: the sum over its pixels is the result.
      const auto total = [&](const std::vector<C>& parts, C& to) {
        if (batch == 1) to = parts[0];
        else
          sum_columns<C>(
              batch, 1, [&](int64_t b, int64_t) { return parts[static_cast<size_t>(b)]; }, &to);
      };
      total(part_g, sum_g[static_cast<size_t>(c)]);
      total(part_gx, sum_gx[static_cast<size_t>(c)]);
    }
  });
}

template <class C> std::vector<C> rstd_of(const std::vector<C>& var, C eps) {
  std::vector<C> rstd(var.size());
  for (size_t c = 0; c < var.size(); ++c) rstd[c] = scalar::rsqrt(var[c] + eps);
  return rstd;
}
template <class C> std::vector<C> scale_of(std::vector<C> rstd, const std::vector<C>& weight) {
  for (size_t c = 0; c < weight.size(); ++c) rstd[c] = rstd[c] * weight[c];
  return rstd;
}

}  // namespace

void batch_norm_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor x = context.in(0).contiguous();
  const std::optional<ChannelLayout> layout = channel_layout(x.sizes(), context.attrs);
  if (!layout) return run_channel_parts(context);
  const ops::VarAndMean statistics = ops::channel_statistics(x, ops::channel_dim(context.attrs));
  context.out(1).copy_(statistics.mean);
  context.out(2).copy_(statistics.var);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const std::vector<C> mean = numbers_of<C>(statistics.mean), var = numbers_of<C>(statistics.var),
                         weight = numbers_of<C>(context.in(1)), bias = numbers_of<C>(context.in(2));
    const std::vector<C> scale = scale_of(rstd_of(var, static_cast<C>(context.attrs.floats[0])), weight);
    normalise_channels(*layout, pointer<T>(x), mean, scale, bias, pointer<T>(context.out(0)));
  });
}

void batch_norm_grad_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor grad = context.in(0).contiguous(), x = context.in(1).contiguous();
  const std::optional<ChannelLayout> layout = channel_layout(x.sizes(), context.attrs);
  if (!layout) return run_channel_parts(context);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const auto channels = static_cast<size_t>(layout->channels);
    const std::vector<C> weight = numbers_of<C>(context.in(2)), mean = numbers_of<C>(context.in(3)),
                         rstd = rstd_of(numbers_of<C>(context.in(4)), static_cast<C>(context.attrs.floats[0])),
                         scale = scale_of(rstd, weight);
    std::vector<C> sum_g(channels), sum_gx(channels), offset(channels), slope(channels);
    const T *const g = pointer<T>(grad), *const from = pointer<T>(x);
    sum_channels(*layout, g, from, mean, sum_g, sum_gx);
    const C inverse = static_cast<C>(1.0 / static_cast<double>(layout->batch * layout->pixels));
    for (size_t c = 0; c < channels; ++c) {
      sum_gx[c] = sum_gx[c] * rstd[c];
      slope[c] = sum_gx[c] * rstd[c] * inverse;
      offset[c] = sum_g[c] * inverse - mean[c] * slope[c];
    }
    write_numbers(sum_gx, context.out(1));
    write_numbers(sum_g, context.out(2));
    T* const to = pointer<T>(context.out(0));
    const C *const s = scale.data(), *const o = offset.data(), *const k = slope.data();
    for_each_run_of_channels(*layout, [&](int64_t at, int64_t channel, int64_t n) {
      const auto value = [=](int64_t i, int64_t c) {
        return static_cast<T>((static_cast<C>(g[at + i]) - o[c] - static_cast<C>(from[at + i]) * k[c]) * s[c]);
      };
      T* const out = to + at;
      if (layout->by_columns()) {
        for (int64_t c = 0; c < n; ++c) out[c] = value(c, c);
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = value(i, channel);
      }
    });
  });
}

}  // namespace rondo::cpu
