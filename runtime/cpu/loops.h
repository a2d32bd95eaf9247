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

// N operands over one broadcast iteration space, dimensions merged where strides allow. Operand 0 is the output.
template <int N> struct StridedLoop {
  Dims sizes;
  std::array<Dims, N> strides;  // elements

  StridedLoop(const Dims& shape, const std::array<const Tensor*, N>& operands) {
    std::array<Dims, N> full;
    for (int k = 0; k < N; ++k) full[k] = broadcast_strides(operands[k]->sizes(), operands[k]->strides(), shape);
    for (int d = 0; d < shape.rank(); ++d) {
      if (shape[d] == 1) continue;
      const int last = sizes.rank() - 1;
      bool merges = last >= 0;
      for (int k = 0; merges && k < N; ++k) merges = strides[k][last] == full[k][d] * shape[d];
      if (merges) {
        sizes[last] *= shape[d];
        for (int k = 0; k < N; ++k) strides[k][last] = full[k][d];
      } else {
        sizes.push_back(shape[d]);
        for (int k = 0; k < N; ++k) strides[k].push_back(full[k][d]);
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      for (int k = 0; k < N; ++k) strides[k].push_back(0);
    }
  }

  // inner(offsets, strides, n): one run along the last dimension.
  template <class Inner> void run(Inner inner) const {
    const int last = sizes.rank() - 1;
    const int64_t inner_size = sizes[last];
    int64_t outer_size = 1;
    for (int d = 0; d < last; ++d) outer_size *= sizes[d];
    std::array<int64_t, N> inner_strides;
    for (int k = 0; k < N; ++k) inner_strides[k] = strides[k][last];
    if (outer_size == 1) {
      parallel_for(inner_size, kElementwiseGrain, [&](int64_t begin, int64_t end) {
        std::array<int64_t, N> offsets;
        for (int k = 0; k < N; ++k) offsets[k] = begin * inner_strides[k];
        inner(offsets, inner_strides, end - begin);
      });
      return;
    }
    parallel_for(outer_size, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(inner_size, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t outer = begin; outer < end; ++outer) {
                     std::array<int64_t, N> offsets{};
                     int64_t rest = outer;
                     for (int d = last - 1; d >= 0; --d) {
                       const int64_t index = rest % sizes[d];
                       rest /= sizes[d];
                       for (int k = 0; k < N; ++k) offsets[k] += index * strides[k][d];
                     }
                     inner(offsets, inner_strides, inner_size);
                   }
                 });
  }
};

// One strided run of an elementwise kernel: n elements of the output and of N inputs. Strides count elements.
template <int N> struct ElementwiseRun {
  std::byte* out;
  std::array<const std::byte*, N> in;
  int64_t out_stride;
  std::array<int64_t, N> strides;
  int64_t n;
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
    const auto [to, from, out_stride, strides, n] = run;
    const Body compute = *static_cast<const Body*>(body);
    Out* out = reinterpret_cast<Out*>(to);
    if (out_stride == 1 && ((strides[I] == 1) && ...)) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(compute(element<In>(from[I], i)...));
      return;
    }
    if constexpr (sizeof...(I) == 2) {
      // A value per row against a row: the broadcast of norms and softmax.
      if (out_stride == 1 && strides[0] == 1 && strides[1] == 0) {
        for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(compute(element<In>(from[I], I == 0 ? i : 0)...));
        return;
      }
    }
    for (int64_t i = 0; i < n; ++i)
      out[i * out_stride] = static_cast<Out>(compute(element<In>(from[I], i * strides[I])...));
  }
  (std::index_sequence_for<In...>());
}

// Runs `body` over the inputs of `context`, one of type In each, into output 0 of type Out.
template <class Out, class... In, class Body> void elementwise(const KernelContext& context, const Body& body) {
  for_each_run<sizeof...(In)>(context, &elementwise_run<Out, Body, In...>, &body);
}

}  // namespace rondo::cpu
