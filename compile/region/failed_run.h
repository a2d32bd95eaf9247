// What is left after a run in which a launch threw: values that are not there, the tape's node of results that were
// complete, and random streams.
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

// The history of the complete results. A backward from them computes what leads to them again, op by op; the run kept
// nothing. It throws Error if a collective would run again.
std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs);

// Stands as the recorder of values that the run did not come to. Who reads one hears `reason`. Lives for good.
Recorder* recorder_of_missing(const std::string& reason);

// The collectives of a run, while in scope. A run that throws may have to run again, op by op: for its draws, its
// writes, or its first error. It then gets the sums that it had (Note [Collectives are effects] in runtime/op/op.h).
class CollectivesOfRun {
 public:
  // Nothing is noted if nothing needs it.
  CollectivesOfRun(const Entry& entry, std::span<const Tensor> inputs);
  // Calls `fn`, in which collectives send only what the run has not sent. `fn` must be the recording, op by op.
  void rerun(absl::FunctionRef<void()> fn) { with_sums(CollectiveScope::kReplay, fn); }
  // Sends nothing: an error takes the place of a collective that the run did not come to.
  void rerun_without_sending(absl::FunctionRef<void()> fn) { with_sums(CollectiveScope::kReplayOnly, fn); }

 private:
  void with_sums(CollectiveScope::Mode mode, absl::FunctionRef<void()> fn);
  CollectiveLog log_;
  std::optional<CollectiveScope> note_;
};

// Note [Draws after an error]. A recording has drawn from random streams for all its ops when one of them throws. In
// eager execution those behind it have drawn nothing, so their draws are taken back.
//
// `failed`: the call of the recording that threw.
void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, size_t failed);
// The same after a run that has written nothing. Runs op by op to find that call, if anything was drawn at all.
void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, CollectivesOfRun& collectives);

}  // namespace rondo::compile
