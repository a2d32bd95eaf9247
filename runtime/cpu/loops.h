// Loops of the eager elementwise kernels: broadcasting, strides, dtypes and threads around one scalar body. The loops
// over lines and threads are compiled once (loops.cc); each body and dtype adds only its innermost loop.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "rondo/runtime/dtype.h"
#include "rondo/runtime/op.h"
#include "rondo/runtime/parallel.h"

namespace rondo::cpu {

// Elements below which threads cost more than they give.
inline constexpr int64_t kElementwiseGrain = 1 << 15;

template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

// A float without its fraction as an integer. What is out of range becomes the nearest number of the type and NaN 0;
// u8 takes the low byte of the i64, as PyTorch does.
template <class Out, class In> Out to_integer(In value) {
  if constexpr (std::is_same_v<Out, uint8_t>) {
    return static_cast<uint8_t>(to_integer<int64_t>(value));
  } else {
    // The type's limits as floats: -2^n is exact, 2^n is one too many.
    constexpr In kLow = static_cast<In>(std::numeric_limits<Out>::min()), kHigh = -kLow;
    const Out inside = value >= kLow && value < kHigh ? static_cast<Out>(value) : Out(0);
    return value >= kHigh ? std::numeric_limits<Out>::max() : value < kLow ? std::numeric_limits<Out>::min() : inside;
  }
}

// Some rows of an elementwise kernel: `rows` times n elements of the output and of N inputs.
template <int N> struct ElementwiseRun {
  std::byte* out;
  std::array<const std::byte*, N> in;
  int64_t out_stride;              // elements, along a row
  std::array<int64_t, N> strides;  // likewise
  int64_t n;
  int64_t rows = 1;
  int64_t out_step = 0;               // bytes, from row to row
  std::array<int64_t, N> steps = {};  // likewise
};
// The innermost loop of one kernel; `body` is its scalar body.
template <int N> using ElementwiseRunFn = void (*)(const ElementwiseRun<N>&, const void* body);

// Cuts output 0 and the first N inputs of `context` into runs, on several threads where that pays. N is 1, 2 or 3.
template <int N> void for_each_run(const KernelContext& context, ElementwiseRunFn<N> run, const void* body);

template <class T> ComputeType<T> element(const std::byte* from, int64_t i) {
  return static_cast<ComputeType<T>>(reinterpret_cast<const T*>(from)[i]);
}

// out[i] = body(in0[i], in1[i], ...), computed in ComputeType.
template <class Out, class Body, class... In>
void elementwise_run(const ElementwiseRun<sizeof...(In)>& run, const void* body) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    // Copies: a store into `out` cannot change them, so the loops vectorise.
    const Body compute = *static_cast<const Body*>(body);
    const int64_t n = run.n, out_stride = run.out_stride, out_step = run.out_step;
    const std::array<int64_t, sizeof...(In)> strides = run.strides, steps = run.steps;
    const bool dense = out_stride == 1 && ((strides[I] == 1) && ...);
    std::byte* to = run.out;
    std::array<const std::byte*, sizeof...(In)> from = run.in;
    for (int64_t row = run.rows; row > 0; --row, to += out_step, ((from[I] += steps[I]), ...)) {
      Out* out = reinterpret_cast<Out*>(to);
      const std::array<const std::byte*, sizeof...(In)> in = from;
      if (dense) {
        for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(compute(element<In>(in[I], i)...));
        continue;
      }
      if constexpr (sizeof...(I) == 2) {
        // A value per row against a row: the broadcast of norms and softmax.
        if (out_stride == 1 && strides[0] == 1 && strides[1] == 0) {
          for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(compute(element<In>(in[I], I == 0 ? i : 0)...));
          continue;
        }
      }
      for (int64_t i = 0; i < n; ++i)
        out[i * out_stride] = static_cast<Out>(compute(element<In>(in[I], i * strides[I])...));
    }
  }
  (std::index_sequence_for<In...>());
}

// Runs `body` over the inputs of `context`, one of type In each, into output 0 of type Out.
template <class Out, class... In, class Body> void elementwise(const KernelContext& context, const Body& body) {
  for_each_run<sizeof...(In)>(context, &elementwise_run<Out, Body, In...>, &body);
}

}  // namespace rondo::cpu
