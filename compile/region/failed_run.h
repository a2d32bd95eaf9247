// Cleans up after a run in which a launch threw: marks the missing values, makes the tape's node of the complete
// results, and takes back draws of random numbers.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/region_node.h"
#include "rondo/runtime/autograd/collective_log.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {

// Makes the history of the complete results. The run kept nothing for a backward. So a backward from these results
// first runs again, op by op, the ops that lead to them. It throws Error if a collective would run again.
std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs);

// Returns a recorder for values that the run did not compute: reading one throws Error with `reason`. Never freed.
Recorder* recorder_of_missing(const std::string& reason);

// Logs the collectives of a run while in scope. A run that throws may have to run again, op by op: for its draws, its
// writes, or its first error. Collectives then return the results of the first run instead of sending again
// (Note [Collectives are effects] in runtime/op/op.h).
class CollectivesOfRun {
 public:
  // Logs nothing if the entry can never need the log.
  CollectivesOfRun(const Entry& entry, std::span<const Tensor> inputs);
  // Calls `fn`, in which collectives send only what the run has not sent. `fn` must run the recording op by op.
  void rerun(absl::FunctionRef<void()> fn) { with_sums(CollectiveScope::kReplay, fn); }
  // Does what rerun() does, but sends nothing: a collective that the run had not reached throws.
  void rerun_without_sending(absl::FunctionRef<void()> fn) { with_sums(CollectiveScope::kReplayOnly, fn); }

 private:
  void with_sums(CollectiveScope::Mode mode, absl::FunctionRef<void()> fn);
  CollectiveLog log_;
  std::optional<CollectiveScope> note_;
};

// Note [Draws after an error]. When an op of a recording throws, the recording has already drawn from random streams
// for all its ops. In eager execution the ops after the one that throws have drawn nothing, so their draws are taken
// back.
//
// `failed`: the call of the recording that threw.
void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, size_t failed);
// Takes back draws as the function above does, for a run that has written nothing. If anything was drawn, runs the
// recording op by op to find the call that threw.
void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, CollectivesOfRun& collectives);

}  // namespace rondo::compile
