// The code of formulas and scalar programs (formula.h): the loops that eager passes run, and the builders that
// generated kernels are made of. Include it where formulas are compiled: in the file with an optimizer's code(), and
// nowhere else. Those files are kernel code (rondo_kernel_sources): the compiler vectorises their loops.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rondo/optim/formula.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

template <class Formula> constexpr size_t sums_of() {
  if constexpr (requires { Formula::kSums; }) return Formula::kSums;
  else return 0;
}

template <class Formula> struct FormulaBody {
  static constexpr size_t kStates = Formula::kStates, kScalars = Formula::kScalars, kSums = sums_of<Formula>();
  static constexpr size_t kArrays = 2 + kStates + kSums;
  static_assert(kStates <= kMaxStates && kArrays <= kMaxValues && kFirstScalar + kScalars <= kMaxScalars);

  // Applies the formula to one element. `v`: the parameter, its gradient, its states, its sums.
  template <class T>
  [[gnu::always_inline]] static void apply(std::array<T, kArrays>& v, const std::array<T, kScalars>& scalars,
                                           T factor) {
    const T grad = v[1] * factor;
    std::array<T, kStates> states;
    for (size_t k = 0; k < kStates; ++k) states[k] = v[2 + k];
    if constexpr (kSums > 0) {
      std::array<T, kSums> sums;
      Formula::update(v[0], grad, states, scalars, sums);
      for (size_t k = 0; k < kSums; ++k) v[2 + kStates + k] = sums[k];
    } else {
      Formula::update(v[0], grad, states, scalars);
    }
    for (size_t k = 0; k < kStates; ++k) v[2 + k] = states[k];
  }

  template <class C> static void run(const void* /*context*/, C* const* values, const C* all_scalars, int64_t n) {
    std::array<C, kScalars> scalars;
    std::copy_n(all_scalars + kFirstScalar, kScalars, scalars.begin());
    const C factor = all_scalars[kGradFactor];
    const auto loop = [&](C* __restrict param, const C* __restrict grad, auto* __restrict... others) {
      for (int64_t i = 0; i < n; ++i) {
        std::array<C, kArrays> v = {param[i], grad[i], others[i]...};
        apply(v, scalars, factor);
        param[i] = v[0];
        size_t k = 2;
        ((others[i] = v[k++]), ...);
      }
    };
    [&]<size_t... K>(std::index_sequence<K...>) { loop(values[0], values[1], values[2 + K]...); }
    (std::make_index_sequence<kArrays - 2>());
  }

  static void build(const void* /*context*/, LoopValue* values, const LoopValue* all_scalars) {
    std::array<LoopValue, kArrays> v;
    std::copy_n(values, kArrays, v.begin());
    std::array<LoopValue, kScalars> scalars;
    std::copy_n(all_scalars + kFirstScalar, kScalars, scalars.begin());
    apply(v, scalars, all_scalars[kGradFactor]);
    std::copy_n(v.begin(), kArrays, values);
  }
};

template <class Formula> Body body_of(const char* name) {
  using B = FormulaBody<Formula>;
  return {.name = name,
          .n_values = 2 + static_cast<int>(B::kStates),
          .n_sums = static_cast<int>(B::kSums),
          .n_scalars = kFirstScalar + static_cast<int>(B::kScalars),
          .f32 = &B::template run<float>,
          .f64 = &B::template run<double>,
          .build = &B::build,
          .keeps = 1u << 1};  // the gradient
}

// Makes the body of a scalar program (scalar_program.h) from a type with kIn, kNumbers, kOut and run().
template <class Program> struct ProgramBody {
  static constexpr size_t kIn = Program::kIn, kNumbers = Program::kNumbers, kOut = Program::kOut;
  static_assert(kIn + kOut <= kMaxValues && kNumbers <= kMaxScalars);

  template <class T> static void call(T* values, const T* all_numbers) {
    std::array<T, kIn> in;
    for (size_t k = 0; k < kIn; ++k) in[k] = values[k];
    std::array<T, kNumbers> numbers;
    for (size_t k = 0; k < kNumbers; ++k) numbers[k] = all_numbers[k];
    const std::array<T, kOut> out = Program::run(in, numbers);
    for (size_t k = 0; k < kOut; ++k) values[kIn + k] = out[k];
  }
  static void run(const void* /*context*/, double* const* values, const double* numbers, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      std::array<double, kIn + kOut> v{};
      for (size_t k = 0; k < kIn; ++k) v[k] = values[k][i];
      call(v.data(), numbers);
      for (size_t k = kIn; k < kIn + kOut; ++k) values[k][i] = v[k];
    }
  }
  static void build(const void* /*context*/, LoopValue* values, const LoopValue* numbers) { call(values, numbers); }
};

template <class Program> Body program_body(const char* name) {
  using B = ProgramBody<Program>;
  return {.name = name,
          .n_values = static_cast<int>(B::kIn + B::kOut),
          .n_scalars = static_cast<int>(B::kNumbers),
          .f64 = &B::run,
          .build = &B::build,
          .keeps = (1u << B::kIn) - 1};
}

// Makes the program of a ScalarRule from a type with kNumbers, kOut and
//   template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers);
template <class Rule> struct StepProgram {
  static constexpr size_t kIn = 2, kNumbers = Rule::kNumbers, kOut = 1 + Rule::kOut;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    const std::array<T, Rule::kOut> results = Rule::run(in[1], numbers);
    std::array<T, kOut> out;
    out[0] = in[0];
    for (size_t k = 0; k < Rule::kOut; ++k) out[1 + k] = results[k];
    return out;
  }
};
template <class Rule> RowProgram step_program(const char* name, std::vector<int> writes) {
  return {program_body<StepProgram<Rule>>(name), {}, std::move(writes)};
}

}  // namespace rondo::optim
#pragma GCC visibility pop
