// Turns a formula into the body that passes run, and options into its scalars. A formula is a type with
//
//   static constexpr size_t kStates, kScalars, kSums;   // kSums may be missing: 0
//   template <class T> static void update(T& param, T grad, std::array<T, kStates>& states,
//                                         const std::array<T, kScalars>& scalars [, std::array<T, kSums>& sums]);
//
// T is float or double in eager kernels and LoopValue in generated ones. `grad` is already unscaled and clipped.
// Files that call body_of, program_body, step_program or plan_of include formula_code.h, too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rondo/optim/foreach.h"
#include "rondo/runtime/base/shape.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Every pass has these scalars before the formula's own: the factor of the gradients, and the weight of the parameters
// in their moving average.
inline constexpr int kMaxStates = 4;
inline constexpr int kGradFactor = 0, kAverageWeight = 1, kFirstScalar = 2;

struct StateSpec {
  const char* name;
  bool nonnegative = false;  // then 8-bit states need no sign bit (block8.h)
  Layout layout = Layout::kFull;
  bool transient = false;  // the state exists during a step only
};

// Returns the sizes of a state, for a parameter of the sizes `param`.
Dims sizes_of(const StateSpec& spec, const Dims& param);

// The format in which states are kept. In all formats, the arithmetic is in the compute dtype. kBF16 and k8Bit need
// parameters of at most 32 bits.
enum class StateFormat : uint8_t {
  kFull,  // the compute dtype
  kBF16,  // half the memory. Changes below 2^-9 of a value are lost, so choose beta2 accordingly
  k8Bit,  // a quarter: one byte an element and 1/64 for scales (block8.h). Below 4,096 elements: as kFull
};

struct StateInit {
  StateFormat format = StateFormat::kFull;
  double value = 0;      // the first value of every element
  bool masters = false;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

// One array of a parameter's state, as its StateSpec says. It holds the addresses (on the device) beside the tensors,
// because a step needs the addresses of thousands of parameters.
struct StateArray {
  Tensor values;  // undefined between steps if the spec says transient
  Tensor scales;  // the scales of 8-bit values, otherwise undefined
  std::byte* values_data = nullptr;
  std::byte* scales_data = nullptr;
  void locate();  // sets values_data and scales_data
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
// those that depend on the parameter's step count (1 in its first step), which only the device knows.
struct ScalarRule {
  std::array<double, kMaxScalars - kFirstScalar> values = {};
  // Computes the scalars `writes` from the step. In: the factor of the gradients, then the step. Out: the factor, then
  // `writes` (StepProgram in formula_code.h). Null if no scalar depends on the step.
  const RowProgram* program = nullptr;
  std::array<double, kMaxNumbers> numbers = {};  // the numbers of the program
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

// Make a Body or RowProgram from a formula, a scalar program (scalar_program.h), or the program of a ScalarRule. They
// are defined in formula_code.h, which only files that compile formulas include. So a program that uses optimizers does
// not compile their loops.
template <class Formula> Body body_of(const char* name);
template <class Program> Body program_body(const char* name);
// `writes`: the scalars of the formula that the program computes.
template <class Rule> RowProgram step_program(const char* name, std::vector<int> writes);
// Returns the plan of an optimizer with one sweep.
template <class Formula> UpdatePlan plan_of(const char* name, std::vector<StateSpec> states) {
  return {std::move(states), {{body_of<Formula>(name)}}};
}

}  // namespace rondo::optim
#pragma GCC visibility pop
