// foreach_map: a user's own elementwise update of lists of tensors, in one pass, eager or compiled.
//
//   using namespace rondo::scalar;
//   const auto lookahead = [](auto& slow, auto& fast, auto alpha) {
//     slow = fma(alpha, fast - slow, slow);
//     fast = slow;
//   };
//   optim::foreach_map(lookahead, slow_weights, model.parameters(), 0.5);      // eager
//   auto update = optim::compile_map(lookahead);    // one kernel for lists of any length
//   update(slow_weights, model.parameters(), 0.5);
//
// The arguments are lists of tensors and numbers, in the order of the lambda's parameters. Tensors i of all lists have
// the same shape. Numbers are run-time scalars and never recompile. The lambda is generic: its type T is float, double
// (if a list is f64) or LoopValue. It may use + - * / and everything in runtime/ops/scalar_math.h. It writes constants
// as constant(x, 0.5) and uses select() instead of an `if` on a value. Assigned elements are written back, rounded to
// the list's dtype. No gradients are recorded. All tensors are on one device; the pass runs there in stream order.
//
// Eager and compiled give the same bits if the lambda is compiled with -ffp-contract=off.
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "rondo/optim/foreach.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// The part of a ForeachMap that does not depend on the lambda: a pass for each signature that it has met so far.
class MapPasses {
 public:
  explicit MapPasses(bool compiled) : compiled_(compiled) {}
  // Runs the body on the lists. Throws Error if lists do not match, or hold something that is not a floating-point
  // tensor, or are on two devices, or if a tensor that is written shares memory with another one of the lists: an
  // element would be read before or after the write, depending on how the pass runs.
  void run(const Body& body, std::span<const std::span<const Tensor>> lists, std::span<const double> scalars);
  int kernels() const { return static_cast<int>(passes_.size()); }

 private:
  bool compiled_;
  struct Known {
    Device device;
    std::shared_ptr<Foreach> pass;
  };
  std::vector<Known> passes_;
};

template <class Fn, bool... kIsList> struct MapBody {
  static constexpr size_t kArgs = sizeof...(kIsList), kLists = (size_t{kIsList} + ...), kNumbers = kArgs - kLists;
  static_assert(kLists >= 1 && kLists <= kMaxValues && kNumbers <= kMaxScalars,
                "too many lists or numbers, or no list");
  // Argument k of the lambda is the ordinal(k)-th list or the ordinal(k)-th number.
  static constexpr size_t ordinal(size_t k) {
    constexpr bool is_list[] = {kIsList...};
    size_t count = 0;
    for (size_t j = 0; j < k; ++j) count += is_list[j] == is_list[k];
    return count;
  }
  template <size_t K, class T> static auto& pick(T* values, const T* numbers) {
    constexpr bool is_list[] = {kIsList...};
    if constexpr (is_list[K]) return values[ordinal(K)];
    else return numbers[ordinal(K)];
  }
  template <class T> [[gnu::always_inline]] static void apply(const Fn& fn, T* values, const T* numbers) {
    [&]<size_t... K>(std::index_sequence<K...>) { fn(pick<K>(values, numbers)...); }
    (std::make_index_sequence<kArgs>());
  }
  template <class C> static void run(const void* fn, C* const* values, const C* numbers, int64_t n) {
    const auto loop = [&](auto* __restrict... list) {
      for (int64_t i = 0; i < n; ++i) {
        std::array<C, kLists> v = {list[i]...};
        apply(*static_cast<const Fn*>(fn), v.data(), numbers);
        size_t k = 0;
        ((list[i] = v[k++]), ...);
      }
    };
    [&]<size_t... K>(std::index_sequence<K...>) { loop(values[K]...); }
    (std::make_index_sequence<kLists>());
  }
  static void build(const void* fn, LoopValue* values, const LoopValue* numbers) {
    apply(*static_cast<const Fn*>(fn), values, numbers);
  }
};

template <class Fn> class ForeachMap {
 public:
  ForeachMap(Fn fn, bool compiled) : fn_(std::make_shared<Fn>(std::move(fn))), passes_(compiled) {}

  template <class... Args> void operator()(const Args&... args) {
    using B = MapBody<Fn, !std::is_arithmetic_v<Args>...>;
    const Body body{.name = "foreach_map",
                    .n_values = static_cast<int>(B::kLists),
                    .n_scalars = static_cast<int>(B::kNumbers),
                    .f32 = &B::template run<float>,
                    .f64 = &B::template run<double>,
                    .build = &B::build,
                    .context = fn_.get(),
                    .owner = fn_};
    std::array<std::span<const Tensor>, B::kLists> lists;
    std::array<double, kMaxScalars> numbers;
    size_t list = 0, number = 0;
    const auto take = [&](const auto& arg) {
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(arg)>>)
        numbers[number++] = static_cast<double>(arg);
      else lists[list++] = std::span<const Tensor>(arg);
    };
    (take(args), ...);
    passes_.run(body, lists, std::span(numbers).first(number));
  }
  // Returns the number of signatures that this object has met so far.
  int kernels() const { return passes_.kernels(); }

 private:
  std::shared_ptr<Fn> fn_;
  MapPasses passes_;
};

template <class Fn, class... Args> void foreach_map(Fn fn, const Args&... args) {
  ForeachMap<Fn>(std::move(fn), false)(args...);
}
// Compiles on the first call with each combination of dtypes. That call throws Error if Rondo was built without LLVM.
template <class Fn> ForeachMap<Fn> compile_map(Fn fn) { return ForeachMap<Fn>(std::move(fn), true); }

}  // namespace rondo::optim
#pragma GCC visibility pop
