// Turns a formula into the body that passes run, and options into its scalars. A formula is a type with
//
//   static constexpr size_t kStates, kScalars, kSums;   // kSums may be missing: 0
//   template <class T> static void update(T& param, T grad, std::array<T, kStates>& states,
//                                         const std::array<T, kScalars>& scalars [, std::array<T, kSums>& sums]);
//
// T is float or double in eager kernels and LoopValue in generated ones. `grad` is already unscaled and clipped.
// Sources that call body_of are kernel code (rondo_kernel_sources): the compiler vectorises their loops.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rondo/optim/foreach.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/shape.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Every pass has these scalars before the formula's own: the factor of the gradients, and the weight of the parameters
// in their moving average.
inline constexpr int kMaxStates = 4;
inline constexpr int kGradFactor = 0, kAverageWeight = 1, kFirstScalar = 2;

struct StateSpec {
  const char* name;
  bool nonnegative = false;  // decides how 8 bits hold it
  Layout layout = Layout::kFull;
  bool transient = false;  // exists during a step only
};

// The shape of a state of a parameter of this shape.
Dims sizes_of(const StateSpec& spec, const Dims& param);

// How state is kept. All arithmetic is in f32; formats below that need parameters of at most 32 bits.
enum class StateFormat : uint8_t {
  kFull,  // the compute dtype
  kBF16,  // half the memory. Changes below 2^-9 of a value are lost: choose beta2 accordingly
  k8Bit,  // a quarter: one byte and 1/64 for scales (block8.h). Parameters below 4,096 elements keep kFull
};

struct StateInit {
  StateFormat format = StateFormat::kFull;
  double value = 0;  // every element's
};

// One array of a parameter's state, by its StateSpec. The addresses (on the device) stand beside the tensors, because a
// step needs those of thousands of parameters.
struct StateArray {
  Tensor values;  // undefined between steps if the spec says transient
  Tensor scales;  // of 8-bit values, otherwise undefined
  std::byte* values_data = nullptr;
  std::byte* scales_data = nullptr;
  void locate();  // sets the addresses
};

// A program on the scalars of a parameter (scalar_program.h), given by its body and by which scalars of the formula it
// reads and writes. Its numbers come from the optimizer: at most kMaxNumbers.
struct RowProgram {
  Body body;
  std::vector<int> reads, writes;
};
inline constexpr size_t kMaxNumbers = 6;
// The f64 values of a parameter (or of several with one group and one step) on the device: its scalars, the numbers of
// the rule's program, and those of its sweeps' programs.
inline constexpr size_t kRuleNumbers = kMaxScalars, kSweepNumbers = kRuleNumbers + kMaxNumbers,
                        kRowValues = kSweepNumbers + kMaxNumbers;

// One pass of an update. With `prepare`, Optimizer::prepare is called for every parameter before it.
struct Sweep {
  Body body;
  bool prepare = false;
  // Runs before the sweep for every parameter. In: the sums of the sweep before, then `reads`. Out: `writes`.
  std::optional<RowProgram> program = std::nullopt;
};

// The scalars of a formula: everything that changes from step to step. The host knows most of them. A program computes
// those that depend on the parameter's step, which is 1 for the first; only the device knows it.
struct ScalarRule {
  std::array<double, kMaxScalars - kFirstScalar> values = {};
  // In: the factor of the gradients, then the step. Out: the factor, then `writes` (scalar_program.h: StepProgram).
  // Null: `values` are all.
  const RowProgram* program = nullptr;
  std::array<double, kMaxNumbers> numbers = {};  // of the program
};

// How one parameter is updated. Most optimizers have one sweep. An optimizer that needs something of the whole tensor
// first (a norm, factors, an orthogonal matrix) gathers it in one sweep and uses it in the next.
struct UpdatePlan {
  std::vector<StateSpec> states;
  std::vector<Sweep> sweeps;
  // Each matrix (the last two dimensions) is an item whose width is its number of columns.
  bool matrices = false;
  // Each parameter has scalars of its own: Optimizer::own_scalars is called, and programs of sweeps may write them.
  bool own_scalars = false;
};

template <class Formula> constexpr size_t sums_of() {
  if constexpr (requires { Formula::kSums; }) return Formula::kSums;
  else return 0;
}

template <class Formula> struct FormulaBody {
  static constexpr size_t kStates = Formula::kStates, kScalars = Formula::kScalars, kSums = sums_of<Formula>();
  static constexpr size_t kArrays = 2 + kStates + kSums;
  static_assert(kStates <= kMaxStates && kArrays <= kMaxValues && kFirstScalar + kScalars <= kMaxScalars);

  // v: param, grad, states, sums.
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

// The plan of an optimizer with one sweep.
template <class Formula> UpdatePlan plan_of(const char* name, std::vector<StateSpec> states) {
  return {std::move(states), {{body_of<Formula>(name)}}};
}

// A scalar program (scalar_program.h) from a type with kIn, kNumbers, kOut and run().
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

// The program of a ScalarRule, from a type with kNumbers, kOut and
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
