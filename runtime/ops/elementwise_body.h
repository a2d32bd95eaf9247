// The scalar body of an elementwise op, compiled for the host: data of its OpDef, one function for each dtype. It
// computes rows of elements and knows nothing of broadcasting, threads or a device: a backend whose memory the host can
// read drives it (cpu/loops.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "rondo/runtime/base/dtype.h"

namespace rondo::ops {

inline constexpr int kMaxElementwiseInputs = 3;

// Some rows of an elementwise op: `rows` times n elements of the output and of each input.
struct ElementwiseRun {
  std::byte* out = nullptr;
  std::array<const std::byte*, kMaxElementwiseInputs> in = {};
  int64_t out_stride = 1;                                   // output: from element to element of a row, in elements
  std::array<int64_t, kMaxElementwiseInputs> strides = {};  // the same for each input
  int64_t n = 0;
  int64_t rows = 1;
  int64_t out_step = 0;                                   // output: from row to row, in bytes
  std::array<int64_t, kMaxElementwiseInputs> steps = {};  // the same for each input
};
// The innermost loops of one op for one dtype. `scalars`: the op's float attributes.
using ElementwiseRunFn = void (*)(const ElementwiseRun& run, const double* scalars);

struct ElementwiseBody {
  int inputs = 0;
  ElementwiseRunFn run[kNumDTypes] = {};  // by the dtype of the last input; null: `infer` refuses the dtype
};

// Returns the body for elements of the types T. `run_of(TypeTag<T>{})` returns the function for one type.
template <class... T, class RunOf> constexpr ElementwiseBody elementwise_body(int inputs, RunOf run_of) {
  ElementwiseBody body{.inputs = inputs};
  ((body.run[static_cast<int>(dtype_of<T>)] = run_of(TypeTag<T>{})), ...);
  return body;
}

template <class RunOf> constexpr ElementwiseBody body_of_any_dtype(int inputs, RunOf run_of) {
  return elementwise_body<double, float, BFloat16, Float16, int64_t, int32_t, uint8_t, bool>(inputs, run_of);
}

template <class T> ComputeType<T> element(const std::byte* from, int64_t i) {
  return static_cast<ComputeType<T>>(reinterpret_cast<const T*>(from)[i]);
}

// Sets out[i] to compute(in0[i], in1[i], ...), computed in ComputeType. `compute` is a copy: a store into `out` cannot
// change it, so the loops vectorise.
template <class Out, class... In, class Compute>
[[gnu::always_inline]] inline void elementwise_run(const ElementwiseRun& run, Compute compute) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    const int64_t n = run.n, out_stride = run.out_stride, out_step = run.out_step;
    const std::array<int64_t, sizeof...(In)> strides = {run.strides[I]...}, steps = {run.steps[I]...};
    const bool dense = out_stride == 1 && ((strides[I] == 1) && ...);
    std::byte* to = run.out;
    std::array<const std::byte*, sizeof...(In)> from = {run.in[I]...};
    for (int64_t row = run.rows; row > 0; --row, to += out_step, ((from[I] += steps[I]), ...)) {
      Out* out = reinterpret_cast<Out*>(to);
      const std::array<const std::byte*, sizeof...(In)> in = from;
      if (dense) {
        for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(compute(element<In>(in[I], i)...));
        continue;
      }
      if constexpr (sizeof...(I) == 2) {
        // Input 1 has one value per row, as in the broadcasts of norms and softmax.
        if (out_stride == 1 && strides[0] == 1 && strides[1] == 0) {
          for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(compute(element<In>(in[I], I == 0 ? i : 0)...));
          continue;
        }
      }
      if constexpr (sizeof...(I) == 3) {
        // Each input is a row, or one value per row, as in where(mask, x, 0).
        const auto of_kind = [&]<unsigned kMoving>(std::integral_constant<unsigned, kMoving>) {
          if (out_stride != 1 || !((strides[I] == (kMoving >> I & 1u)) && ...)) return false;
          for (int64_t i = 0; i < n; ++i)
            out[i] = static_cast<Out>(compute(element<In>(in[I], (kMoving >> I & 1u) != 0 ? i : 0)...));
          return true;
        };
        const bool done = [&]<unsigned... kMoving>(std::integer_sequence<unsigned, kMoving...>) {
          return (of_kind(std::integral_constant<unsigned, kMoving>{}) || ...);
        }
        (std::make_integer_sequence<unsigned, 8>());
        if (done) continue;
      }
      for (int64_t i = 0; i < n; ++i)
        out[i * out_stride] = static_cast<Out>(compute(element<In>(in[I], i * strides[I])...));
    }
  }
  (std::index_sequence_for<In...>());
}

// Converts a float to an integer, without its fraction. A value out of range becomes the type's nearest number, NaN
// becomes 0. A u8 gets the low byte of the value as i64, as in PyTorch.
template <class Out, class In> Out to_integer(In value) {
  if constexpr (std::is_same_v<Out, uint8_t>) {
    return static_cast<uint8_t>(to_integer<int64_t>(value));
  } else {
    // The type's limits as floats: -2^n is exact, 2^n is one above the largest.
    constexpr In kLow = static_cast<In>(std::numeric_limits<Out>::min()), kHigh = -kLow;
    const Out inside = value >= kLow && value < kHigh ? static_cast<Out>(value) : Out(0);
    return value >= kHigh ? std::numeric_limits<Out>::max() : value < kLow ? std::numeric_limits<Out>::min() : inside;
  }
}

// Converts a number to an element type. Numbers that become 16-bit floats are rounded to f32 first.
template <class Out, class In> Out convert(In value) {
  static_assert(std::is_arithmetic_v<In>, "a class that converts to double would go around to_integer");
  if constexpr (std::is_same_v<Out, bool>) return value != In(0);
  else if constexpr (std::is_same_v<Out, BFloat16> || std::is_same_v<Out, Float16>)
    return Out(static_cast<float>(value));
  else if constexpr (std::is_floating_point_v<In> && std::is_integral_v<Out>) return to_integer<Out>(value);
  else return static_cast<Out>(value);
}

}  // namespace rondo::ops
