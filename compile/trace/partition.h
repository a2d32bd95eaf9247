// Partition: what a region's forward keeps for its backward, and what the backward computes again.
//
// By a minimum cut through the decomposed forward graph, weighed in bytes (choose_kept.h). Values that only take
// elementwise ops and views to compute may be computed again, as part of the kernels that read them; products,
// reductions and library calls are not repeated unless asked: all that helps with Recompute::kFull, no more than a
// number of bytes takes with kBudget, the least work per byte saved first. What is computed again has the same bits:
// random numbers follow from a state that is an input. The region's inputs cost nothing: the caller holds parameters
// anyway, and one activation per block has to be kept. Of inputs and outputs only what the ops' rules save is kept, and
// parameters. A write in place between forward and backward is then an error where it is one in eager execution; in
// fewer places for what is computed again; and in one more: on a parameter from which something is computed again (with
// kFull, and where kBudget computes more again than kAuto would: on any input, as for activation checkpointing). It
// never gives a wrong gradient.
#pragma once

#include <span>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/trace/joint.h"

namespace rondo::compile {

class Partition {
 public:
  // `needed`: values of `recorded` that the backward reads.
  // `like`: one of the same block at other sizes, or null; its choice is taken over, so that both run the same kernels,
  // unless it exceeds a budget at these sizes.
  Partition(const Graph& recorded, std::span<const ValueId> needed, const CompileOptions& options,
            const Partition* like);

  // What to run: `recorded` in simpler ops. Its outputs are those of `recorded`, then what is kept and is not there
  // yet.
  const Graph& forward() const { return forward_; }

  struct Kept {
    bool is_input;  // of forward(), else of its outputs
    int32_t index;
  };
  const std::vector<Kept>& kept() const { return kept_; }
  // Bytes kept besides inputs and the caller's outputs; views of one memory count once.
  int64_t kept_bytes() const { return kept_bytes_; }

  // True for what a backward that is the last to read it may write over if nobody else holds it: not for parameters.
  bool may_donate(const BackwardInput& input) const;

  // Rewrites a backward of `recorded` that reads nothing but `needed`: its kSaved inputs become indices into kept(),
  // and what is not kept is computed where it starts.
  void apply(BackwardGraph& backward) const;

 private:
  bool resembles(const Partition& other) const;

  Graph forward_;
  size_t caller_outputs_ = 0;
  std::vector<ValueId> forward_id_;  // by value of `recorded`; kNoValue unless the backward reads it
  std::vector<int32_t> kept_index_;  // by value of forward_: into kept_, or -1
  std::vector<Kept> kept_;
  int64_t kept_bytes_ = 0;
};

}  // namespace rondo::compile
