// OptimizerState: everything that an optimizer keeps between steps. Optimizer changes it when the user asks, Step
// (step.h) when a step is made, and UpdateAtSeams marks the steps that it makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rondo/optim/buffer_averages.h"
#include "rondo/optim/formula.h"
#include "rondo/optim/launch_queue.h"
#include "rondo/optim/param_slot.h"
#include "rondo/optim/shard_hooks.h"
#include "rondo/optim/step_passes.h"
#include "rondo/optim/update_facts.h"

namespace rondo::optim {

// Parameters that are updated by the same code: one Foreach for each sweep of the plan.
struct Signature {
  const UpdatePlan* plan = nullptr;
  DType dtype = kF32;
  std::optional<DType> copy;
  std::vector<std::shared_ptr<Foreach>> sweeps;
  std::vector<size_t> updates;  // indices into the list of this step's updates; empty between steps
};

struct OptimizerState {
  std::vector<ParamSlot> slots;
  std::vector<int64_t> group_sizes;
  std::vector<uint64_t> group_hashes;  // by group: a hash of the shapes, formula and state format of its parameters
  bool averaging = false;
  double average_decay = 0;
  bool average_warmup = false;
  std::unique_ptr<BufferAverages> buffers;  // null: none are averaged
  bool averages_swapped = false;            // an AverageScope has put the averages into the parameters
  std::unique_ptr<StepCount> skipped;       // null: no step has measured its gradients

  StepPasses passes;
  std::vector<Signature> signatures;
  bool zero_grad = false;  // the value of StepOptions::zero_grad for which `signatures` were made
  LaunchQueue queue;       // empty between steps. It lives on because its tables keep their memory

  bool at_seams = false;  // an UpdateAtSeams makes the steps
  bool mid_step = false;  // UpdateAtSeams has updated some parameters of this step

  ShardHooks* shards = nullptr;  // not null: the states are spread over processes

  // For processes that train one model (step_facts.cc).
  std::shared_ptr<const std::vector<std::string>> fact_names;  // null: not made yet
  bool states_loaded = false;  // states were loaded since the last step; the facts of a step do not contain them yet
  std::optional<UpdateFacts> loaded_facts;  // if slots are pieces: the facts of the whole states that were loaded

  Device device() const { return slots[0].param.device(); }
};

// Returns a name for messages, such as "parameter 3".
std::string slot_name(size_t slot);

// These three functions throw Error, which names the optimizer and the called function `what`: while a step is under
// way; while an AverageScope has the averages in the parameters; while the states are spread over processes (`instead`:
// advice).
void check_between_steps(const char* optimizer, const OptimizerState& state, const char* what);
void check_not_swapped(const char* optimizer, const OptimizerState& state, const char* what);
void check_not_sharded(const char* optimizer, const OptimizerState& state, const char* what, const char* instead);

// For parameters that something else has written: copies them into their 16-bit copies, and into their averages if no
// step has updated these.
void refresh(std::vector<ParamSlot>& slots);

}  // namespace rondo::optim
