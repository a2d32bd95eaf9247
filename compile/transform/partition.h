// Partition: what a region's forward saves for its backward, and what the backward recomputes.
//
// A minimum cut through the decomposed forward graph decides; its weights are bytes (choose_kept.h). Elementwise ops
// and views may be recomputed, inside the kernels that read them. Products, reductions and library calls are recomputed
// only on request: all that helps with Recompute::kFull; with kBudget only as much as the number of bytes demands, the
// least work per byte saved first. Recomputed values have the same bits, since random numbers follow from a state that
// is an input. Saving an input of the region costs nothing: the caller holds its parameters anyway, and one activation
// per block has to be saved.
//
// In-place writes between forward and backward raise StaleTensorError as in eager mode: the only inputs and outputs
// that are saved are parameters, what the ops' rules save, and sums over ranks from which that is computed
// (collectives_read()). Recomputed values relax this: they are not saved, so a
// write to them is no error. One write more is an error: one to a parameter from which a value is recomputed (with
// kFull, and with kBudget where it recomputes more than kAuto: to any input, as with activation checkpointing). No
// gradient is ever wrong.
#pragma once

#include <span>
#include <vector>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/options.h"
#include "rondo/compile/transform/joint.h"

namespace rondo::compile {

class Partition {
 public:
  // `needed`: values of `recorded` that the backward reads.
  // `like`: one of the same block at other sizes, or null; its choice is taken over, so that both run the same kernels,
  // unless it exceeds a budget at these sizes.
  Partition(const Graph& recorded, std::span<const ValueId> needed, const CompileOptions& options,
            const Partition* like);

  // The graph to run: `recorded` in simpler ops. Its outputs are those of `recorded`, then what is kept and is not
  // there yet.
  const Graph& forward() const { return forward_; }

  struct Kept {
    bool is_input;  // of forward(), else of its outputs
    int32_t index;
    friend bool operator==(const Kept&, const Kept&) = default;
  };
  const std::vector<Kept>& kept() const { return kept_; }
  bool keeps_the_same_as(const Partition& other) const { return kept_ == other.kept_; }
  // Where kept() has a value of `recorded`, or -1.
  int32_t kept_index(ValueId recorded) const;
  // Bytes kept besides inputs and the caller's outputs; views of one memory count once.
  int64_t kept_bytes() const { return kept_bytes_; }

  // True for what a backward that is the last to read it may write over if nobody else holds it: not for parameters.
  bool may_donate(const BackwardInput& input) const;

  // forward() has plain numbers from now on (FloatTrace).
  void forget_symbols() { compile::forget_symbols(forward_); }

  // Rewrites a backward of `recorded` that reads nothing but `needed`: its kSaved inputs become indices into kept(),
  // and what is not kept is computed where it starts.
  void apply(BackwardGraph& backward) const;

 private:
  bool resembles(const Partition& other) const;

  Graph forward_;
  size_t caller_outputs_ = 0;
  ValueMap<ValueId> forward_id_;  // by value of `recorded`; kNoValue unless the backward reads it
  ValueMap<int32_t> kept_index_;  // by value of forward_: into kept_, or -1
  std::vector<Kept> kept_;
  int64_t kept_bytes_ = 0;
};

}  // namespace rondo::compile
