// Step: one step of an optimizer, for all or some of its parameters (Note [Steps], optimizer.h). Optimizer::step()
// makes one Step for all parameters after backward; UpdateAtSeams makes several, for a few parameters each.
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
  // Adds launches to a step: they are enqueued together with the step's own launches, or not at all.
  using JoinedWork = absl::FunctionRef<void(LaunchQueue& queue, const Decision* decision)>;
  static void no_joined_work(LaunchQueue& /*queue*/, const Decision* /*decision*/) {}

  static OptimizerState& state_of(const Optimizer& optimizer);
  static void check_options(const Optimizer& optimizer, const StepOptions& options);
  [[noreturn]] static void throw_no_gradients(const Optimizer& optimizer);
  // Warns once that the loaded state lacks f32 weights of 16-bit parameters.
  static void say_no_masters(const Optimizer& optimizer);
  // Does what Optimizer::step() does, with launches that join the step. `where`: the line of the call.
  static StepReport run(Optimizer& optimizer, const StepOptions& options, std::source_location where,
                        JoinedWork joined = no_joined_work);

  // Returns the options of the step and of the groups (update_facts.h). If states were loaded since the last call, also
  // returns hashes of the states, which are read from the device.
  static UpdateFacts facts_of(Optimizer& optimizer, const StepOptions& options);
  // The index in UpdateFacts::numbers of a number that says which slots were updated. facts_of() sets it to 0, and
  // UpdateAtSeams to hash_of() of the updated slots.
  static constexpr size_t kUpdatedFact = 1;
  static double hash_of(const std::vector<bool>& updated);
  // Returns the hashes of the states in a state_dict() of whole parameters.
  static UpdateFacts facts_of_states(const char* optimizer, const nn::StateDict& state);

  explicit Step(Optimizer& optimizer);
  // Adds the update of a parameter that has a gradient; returns false if it has none. Throws Error if the gradient or
  // the state does not fit the parameter.
  bool collect(size_t slot);
  // Returns the listener to tell about the collected updates, or null if there is none.
  UpdateListener* listener() const;
  // Enqueues the computation of the Decision, and before that the norm of the gradients if the options need it.
  void decide(const StepOptions& options);
  // Makes the collected updates. Each parameter has its own items in the passes, so one update of all parameters and
  // several updates of a few give the same bits. REQUIRES: decide().
  void update(bool zero_grad, JoinedWork joined = no_joined_work);
  // Updates the moving averages of buffers, if there are any. Call it once per step, even if several update() calls
  // make the step.
  static void average_buffers(Optimizer& optimizer);

 private:
  void check_any_gradient() const;

  Optimizer& optimizer_;
  OptimizerState& state_;
  std::vector<StepUpdate> updates_;
  Tensor decision_;        // a Decision on the device
  bool measured_ = false;  // the options need the norm of the gradients
};

}  // namespace rondo::optim
