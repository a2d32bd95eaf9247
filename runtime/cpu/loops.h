// Loops that eager elementwise kernels run in: broadcasting, strides, dtypes and threads, around one scalar body.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "rondo/runtime/dtype.h"
#include "rondo/runtime/op.h"
#include "rondo/runtime/parallel.h"

namespace rondo::cpu {

// Elements below which threads cost more than they give.
inline constexpr int64_t kElementwiseGrain = 1 << 15;

template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

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

// out[i] = body(in0[i], in1[i], ...), computed in ComputeType. One strided run.
template <class Out, class In, class Body, size_t... I>
void elementwise_run(Out* out, int64_t out_stride, const std::array<const In*, sizeof...(I)>& in,
                     const std::array<int64_t, sizeof...(I)>& strides, int64_t n, const Body& body,
                     std::index_sequence<I...>) {
  using C = ComputeType<In>;
  if (out_stride == 1 && ((strides[I] == 1) && ...)) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(body(static_cast<C>(in[I][i])...));
    return;
  }
  if constexpr (sizeof...(I) == 2) {
    // A value per row against a row, the broadcast that norms and softmax make.
    if (out_stride == 1 && strides[0] == 1 && strides[1] == 0) {
      const C right = static_cast<C>(*in[1]);
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(body(static_cast<C>(in[0][i]), right));
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i)
    out[i * out_stride] = static_cast<Out>(body(static_cast<C>(in[I][i * strides[I]])...));
}

// Runs body over context's inputs (all of type In) into output 0 (of type Out).
template <int NIn, class Out, class In, class Body> void elementwise(const KernelContext& context, const Body& body) {
  Tensor& result = context.out();
  Out* out = reinterpret_cast<Out*>(result.impl()->data());
  std::array<const In*, NIn> in;
  std::array<int64_t, NIn> unit;
  bool dense = result.is_contiguous();
  for (int k = 0; k < NIn; ++k) {
    in[k] = reinterpret_cast<const In*>(context.in(k).impl()->data());
    unit[k] = 1;
    dense = dense && context.in(k).is_contiguous() && context.in(k).sizes() == result.sizes();
  }
  constexpr auto kIndices = std::make_index_sequence<NIn>();
  if (dense) {
    const int64_t n = result.numel();
    if (n <= kElementwiseGrain) return elementwise_run(out, 1, in, unit, n, body, kIndices);
    parallel_for(n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<const In*, NIn> at;
      for (int k = 0; k < NIn; ++k) at[k] = in[k] + begin;
      elementwise_run(out + begin, 1, at, unit, end - begin, body, kIndices);
    });
    return;
  }
  if (result.numel() == 0) return;
  std::array<const Tensor*, NIn + 1> operands;
  operands[0] = &result;
  for (int k = 0; k < NIn; ++k) operands[k + 1] = &context.in(k);
  StridedLoop<NIn + 1>(result.sizes(), operands).run([&](const auto& offsets, const auto& strides, int64_t n) {
    std::array<const In*, NIn> at;
    std::array<int64_t, NIn> in_strides;
    for (int k = 0; k < NIn; ++k) {
      at[k] = in[k] + offsets[k + 1];
      in_strides[k] = strides[k + 1];
    }
    elementwise_run(out + offsets[0], strides[0], at, in_strides, n, body, kIndices);
  });
}

}  // namespace rondo::cpu
