// Softmax and its logarithm along one dimension, forward and backward. Lines along the last dimension are rows. Lines
// along another dimension are columns; a thread takes a block of adjacent columns.
#include "rondo/runtime/cpu/column_reduce.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/cpu/streams.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/reduction_def.h"

namespace rondo::cpu {
namespace {

// A row, or a block of columns: the offset of element k in line c is at(k, c). A row is a single line.
template <bool kColumns> struct Lines {
  int64_t length, width, step;
  int64_t at(int64_t k, int64_t c) const { return kColumns ? k * step + c : k; }

  // Sets to[c] to the sum of value(k, c) over k, in the order of ops/reduction_order.h.
  template <class C, class Value> void sum(Value value, C* to) const {
    if constexpr (kColumns) sum_columns<C>(length, width, value, to);
    else *to = sum_row<C>(length, [&](int64_t k) { return value(k, 0); });
  }
  template <class C, class Value> void max(Value value, C* to) const {
    const auto larger = [](C a, C b) { return scalar::maximum(a, b); };
    constexpr C kLeast = -std::numeric_limits<C>::infinity();
    if constexpr (kColumns) reduce_columns<C>(length, width, kLeast, value, larger, to);
    else *to = max_row<C>(length, [&](int64_t k) { return value(k, 0); });
  }
  // True if streaming stores are faster for a result of `bytes` bytes that is written block by block. `to`: where the
  // block of these lines begins.
  template <class T> bool streams(const T* to, int64_t bytes) const {
    const auto size = static_cast<int64_t>(sizeof(T));
    return kColumns && is_streamed(to, bytes, width * size) && is_streamed(to, bytes, step * size);
  }
  template <class Fn> void for_each(Fn fn) const {
    for (int64_t k = 0; k < length; ++k)
      for (int64_t c = 0; c < (kColumns ? width : 1); ++c) fn(k, c);
  }
};

// Calls fn(lines, offset) for all lines of `sizes` along the op's dimension, on several threads.
template <class Fn> void for_each_block(const KernelContext& context, const Dims& sizes, Fn fn) {
  if (sizes.numel() == 0) return;
  const ops::ReducedRun run = ops::last_run(sizes, int64_t{1} << ops::softmax_dim(sizes, context.attrs));
  const int64_t grain = kElementwiseGrain / 4;
  if (!run.by_columns) {
    parallel_for(run.outer, std::max<int64_t>(1, grain / run.reduced), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) fn(Lines<false>{run.reduced, 1, 1}, r * run.reduced);
    });
    return;
  }
  const int64_t blocks = (run.inner + kColumnBlock - 1) / kColumnBlock;
  parallel_for(run.outer * blocks, std::max<int64_t>(1, grain / (run.reduced * kColumnBlock)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   const int64_t first = block % blocks * kColumnBlock;
                   fn(Lines<true>{run.reduced, std::min(kColumnBlock, run.inner - first), run.inner},
                      block / blocks * run.reduced * run.inner + first);
                 }
               });
}

// Calls fn(TypeTag<T>) for the dtype of output 0, with recording off: kernels may make dense copies of their inputs.
template <class Fn> void for_floating(const KernelContext& context, Fn fn) {
  RecorderScope run(nullptr);
  visit_floating(context.out().dtype(), fn);
}

}  // namespace

void softmax_kernel(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Tensor x = context.in(0).contiguous();
    for_each_block(context, x.sizes(), [&](const auto& lines, int64_t offset) {
      const T* from = pointer<T>(x) + offset;
      T* y = pointer<T>(context.out()) + offset;
      // The exponentials are stored in the result's memory, unless its dtype would round them or the result is
      // streamed.
      const bool streams = std::is_same_v<T, C> && lines.streams(y, context.out().numel() * int64_t{sizeof(T)});
      const bool in_result = std::is_same_v<T, C> && !streams;
      Scratch<C> scratch(in_result ? 0 : lines.length * lines.width);
      C* const kept = in_result ? reinterpret_cast<C*>(y) : scratch.take(lines.length * lines.width);
      const int64_t step = in_result ? lines.at(1, 0) : lines.width;
      const auto e = [=](int64_t k, int64_t c) -> C& { return kept[k * step + c]; };
      C top[kColumnBlock], total[kColumnBlock];
      lines.template max<C>([&](int64_t k, int64_t c) { return static_cast<C>(from[lines.at(k, c)]); }, top);
      lines.for_each(
          [&](int64_t k, int64_t c) { e(k, c) = scalar::exp(static_cast<C>(from[lines.at(k, c)]) - top[c]); });
      lines.template sum<C>([&](int64_t k, int64_t c) { return e(k, c); }, total);
      for (int64_t c = 0; c < lines.width; ++c) total[c] = C(1) / total[c];
      if (!streams) {
        lines.for_each([&](int64_t k, int64_t c) { y[lines.at(k, c)] = static_cast<T>(e(k, c) * total[c]); });
        return;
      }
      lines.for_each([&](int64_t k, int64_t c) { e(k, c) *= total[c]; });
      for (int64_t k = 0; k < lines.length; ++k)
        stream_copy(y + lines.at(k, 0), &e(k, 0), static_cast<size_t>(lines.width) * sizeof(T));
      end_streams();
    });
  });
}

void softmax_grad_kernel(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Tensor grad = context.in(0).contiguous(), output = context.in(1).contiguous();
    for_each_block(context, output.sizes(), [&](const auto& lines, int64_t offset) {
      const T *g = pointer<T>(grad) + offset, *y = pointer<T>(output) + offset;
      T* dx = pointer<T>(context.out()) + offset;
      C dot[kColumnBlock];
      lines.template sum<C>(
          [&](int64_t k, int64_t c) { return static_cast<C>(g[lines.at(k, c)]) * static_cast<C>(y[lines.at(k, c)]); },
          dot);
      lines.for_each([&](int64_t k, int64_t c) {
        const int64_t i = lines.at(k, c);
        dx[i] = static_cast<T>((static_cast<C>(g[i]) - dot[c]) * static_cast<C>(y[i]));
      });
    });
  });
}

void log_softmax_kernel(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Tensor x = context.in(0).contiguous();
    for_each_block(context, x.sizes(), [&](const auto& lines, int64_t offset) {
      const T* from = pointer<T>(x) + offset;
      T* y = pointer<T>(context.out()) + offset;
      C top[kColumnBlock], total[kColumnBlock];
      const auto value = [&](int64_t k, int64_t c) { return static_cast<C>(from[lines.at(k, c)]); };
      lines.template max<C>(value, top);
      lines.template sum<C>([&](int64_t k, int64_t c) { return scalar::exp(value(k, c) - top[c]); }, total);
      for (int64_t c = 0; c < lines.width; ++c) total[c] = scalar::log(total[c]);
      lines.for_each(
          [&](int64_t k, int64_t c) { y[lines.at(k, c)] = static_cast<T>(value(k, c) - top[c] - total[c]); });
    });
  });
}

void log_softmax_grad_kernel(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Tensor grad = context.in(0).contiguous(), output = context.in(1).contiguous();
    for_each_block(context, output.sizes(), [&](const auto& lines, int64_t offset) {
      const T *g = pointer<T>(grad) + offset, *y = pointer<T>(output) + offset;
      T* dx = pointer<T>(context.out()) + offset;
      C total[kColumnBlock];
      lines.template sum<C>([&](int64_t k, int64_t c) { return static_cast<C>(g[lines.at(k, c)]); }, total);
      lines.for_each([&](int64_t k, int64_t c) {
        const int64_t i = lines.at(k, c);
        dx[i] = static_cast<T>(static_cast<C>(g[i]) - scalar::exp(static_cast<C>(y[i])) * total[c]);
      });
    });
  });
}

}  // namespace rondo::cpu
