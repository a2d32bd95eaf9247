// Partition: what a region's forward saves for its backward, and what the backward recomputes.
//
// A minimum cut through the decomposed forward graph decides; its weights are bytes (choose_kept.h). Elementwise ops
// and views may be recomputed, inside the kernels that read them. Products, reductions and library calls are recomputed
// only on request: with Recompute::kFull, all that save memory; with kBudget, only as many as the number of bytes
// demands, beginning with the least work per byte saved. Recomputed values have the same bits, because random numbers
// follow from a state that is an input. Saving an input of the region costs nothing: the caller holds its parameters
// anyway, and one activation per block has to be saved.
//
// In-place writes between forward and backward raise StaleTensorError as in eager mode, because the saved inputs and
// outputs are only parameters, tensors that the ops' gradient rules save, and sums over ranks from which those are
// computed (collectives_read()). There are two exceptions. A write to a recomputed value is no error, because the value
// is not saved. A write to a parameter from which a value is recomputed is an error, although it may be none in eager
// mode. With kFull, and with kBudget if it recomputes more than kAuto, this is true of a write to any input, as with
// activation checkpointing. No gradient is ever wrong.
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
  // `like`: a partition of the same block at other sizes, or null. Its choice is taken over, so that both run the same
  // kernels, unless the choice exceeds a budget at these sizes.
  Partition(const Graph& recorded, std::span<const ValueId> needed, const CompileOptions& options,
            const Partition* like);

  // Returns the graph to run: `recorded` in simpler ops. Its outputs are those of `recorded`, then the kept values that
  // are neither inputs nor outputs of `recorded`.
  const Graph& forward() const { return forward_; }

  struct Kept {
    bool is_input;  // true: `index` is an input of forward(); false: an output
    int32_t index;
    friend bool operator==(const Kept&, const Kept&) = default;
  };
  const std::vector<Kept>& kept() const { return kept_; }
  bool keeps_the_same_as(const Partition& other) const { return kept_ == other.kept_; }
  // Returns the position in kept() of a value of `recorded`, or -1.
  int32_t kept_index(ValueId recorded) const;
  // Returns the bytes kept besides inputs and the caller's outputs; views of one memory count once.
  int64_t kept_bytes() const { return kept_bytes_; }

  // True if the last backward that reads `input` may overwrite it, provided that nobody else holds it. False for
  // parameters.
  bool may_donate(const BackwardInput& input) const;

  // Replaces the symbols of forward() by plain numbers (FloatTrace).
  void forget_symbols() { compile::forget_symbols(forward_); }

  // Rewrites a backward of `recorded` that reads only `needed` values: its kSaved inputs become indices into kept(),
  // and it first computes the values that are not kept.
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
