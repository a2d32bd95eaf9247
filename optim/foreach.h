// One pass over all parameters: their elements are one list that parallel_for cuts into equal parts, so that one large
// and a thousand small tensors keep the threads equally busy, and each value is read and written once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/dtype.h"

namespace rondo::optim {

inline constexpr int kMaxStates = 3, kMaxScalars = 12;

// What one parameter's update reads and writes. States are in the compute dtype of `dtype`.
struct UpdateItem {
  DType dtype = kF32;
  int64_t numel = 0;
  void* param = nullptr;
  const void* grad = nullptr;
  std::array<void*, kMaxStates> states = {};
  const double* scalars = nullptr;
};

// Updates elements [begin, end) of one item.
using UpdateKernel = void (*)(const UpdateItem& item, int64_t begin, int64_t end);

// Elements below which a second thread costs more than it gives.
inline constexpr int64_t kForeachGrain = 1 << 14;

// Calls fn(i, begin, end) in parallel for pieces that together cover [0, sizes[i]) of every i.
void parallel_for_each(std::span<const int64_t> sizes,
                       absl::FunctionRef<void(size_t i, int64_t begin, int64_t end)> fn);

// The loop around a formula, vectorised by the compiler. A formula has kStates, kScalars and
//   template <class T> static void update(T& param, T grad, std::array<T, kStates>& states,
//                                         const std::array<T, kScalars>& scalars);
// where T is float or double here and LoopValue in generated kernels.
template <class Formula>
void run_update(const UpdateItem& item, int64_t begin, int64_t end) {
  visit_floating(item.dtype, [&](auto tag) {
    using P = typename decltype(tag)::type;
    using C = std::conditional_t<std::is_same_v<P, double>, double, float>;
    std::array<C, Formula::kScalars> scalars;
    for (size_t k = 0; k < scalars.size(); ++k) scalars[k] = static_cast<C>(item.scalars[k]);
    P* __restrict param = static_cast<P*>(item.param);
    const P* __restrict grad = static_cast<const P*>(item.grad);
    const auto loop = [&](auto* __restrict... state) {
      for (int64_t i = begin; i < end; ++i) {
        C p = static_cast<C>(param[i]);
        std::array<C, Formula::kStates> values = {state[i]...};
        Formula::template update<C>(p, static_cast<C>(grad[i]), values, scalars);
        size_t k = 0;
        ((state[i] = values[k++]), ...);
        param[i] = static_cast<P>(p);
      }
    };
    [&]<size_t... K>(std::index_sequence<K...>) { loop(static_cast<C*>(item.states[K])...); }
    (std::make_index_sequence<Formula::kStates>());
  });
}

}  // namespace rondo::optim
