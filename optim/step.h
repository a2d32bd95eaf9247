// Step: one step of an optimizer, or of some of its parameters (Note [Steps], optimizer.h). Optimizer::step() makes
// it for all parameters after backward, UpdateAtSeams for a few at a time.
//
//   Step step(optimizer);
//   for (size_t slot : slots) step.collect(slot);   // the parameters that have a gradient
//   step.decide(options);                           // the Decision, on the device
//   step.update(options.zero_grad);                 // all launches, or an exception and none
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/optimizer_state.h"
#include "rondo/optim/step_launches.h"

namespace rondo::optim {

class Step {
 public:
  // Adds launches that are to be made with the step or not at all.
  using JoinedWork = absl::FunctionRef<void(LaunchQueue& queue, const Decision* decision)>;
  static void no_joined_work(LaunchQueue& /*queue*/, const Decision* /*decision*/) {}

  static OptimizerState& state_of(const Optimizer& optimizer);
  static void check_options(const Optimizer& optimizer, const StepOptions& options);
  [[noreturn]] static void throw_no_gradients(const Optimizer& optimizer);
  // Once: a state was loaded that lacks f32 weights of 16-bit parameters.
  static void say_no_masters(const Optimizer& optimizer);
  // Optimizer::step(), with work that joins it. `where`: the line of the call.
  static StepReport run(Optimizer& optimizer, const StepOptions& options, std::source_location where,
                        JoinedWork joined = no_joined_work);

  // The options of a step and of the groups, and hashes of the states if they were loaded since the last call: these
  // are read from the device. See update_facts.h.
  static UpdateFacts facts_of(Optimizer& optimizer, const StepOptions& options);
  // The number among them that says which parameters were updated, by slot; for who knows it: hash_of().
  static constexpr size_t kUpdatedFact = 1;
  static double hash_of(const std::vector<bool>& updated);
  // The same for a state_dict() of whole parameters.
  static UpdateFacts facts_of_states(const char* optimizer, const nn::StateDict& state);

  explicit Step(Optimizer& optimizer);
  // Adds the update of a parameter that has a gradient; false: it has none. Throws Error if the gradient does not fit
  // the parameter, or the state no longer fits it.
  bool collect(size_t slot);
  // Who wants to know of the updates that were collected; null: nobody.
  UpdateListener* listener() const;
  // Measures the gradients if the options need it, and enqueues what makes the Decision of it.
  void decide(const StepOptions& options);
  // Updates what was collected. Each parameter has its own items in the passes, so all at once and some at a time give
  // the same bits. REQUIRES: decide().
  void update(bool zero_grad, JoinedWork joined = no_joined_work);
  // Moves the averages of buffers, where there are any: once for a step that was made by several update().
  static void average_buffers(Optimizer& optimizer);

 private:
  void check_any_gradient() const;

  Optimizer& optimizer_;
  OptimizerState& state_;
  std::vector<StepUpdate> updates_;
  Tensor decision_;        // a Decision on the device
  bool measured_ = false;  // the norm of the gradients
};

}  // namespace rondo::optim
