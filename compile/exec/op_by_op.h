// OpByOp: runs a graph op by op with the ops' own kernels. Compiled results are compared with its values.
//
// Note [What rounding moves]. In exact mode no bit may differ. In default mode, a compiled program rounds in other
//   places and adds in another order than eager execution. The effect on a number depends on how it is computed: if
//   terms cancel, only their rounding is left. An example is the gradient of a bias before a normalisation: its exact
//   value is 0. So a fraction of the largest element (kRelaxed) does not bound every difference. If a result differs by
//   more than this fraction, the graph runs three more times, and each input and each op's result is nudged: changed by
//   up to a unit in its last place. A result may differ by kTimesMoved times as much as these nudges move it. A nudge
//   may change the outcome of a comparison; then all results that depend on the comparison move, too.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/autograd/collective_log.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

inline constexpr double kRelaxed = 1e-5;              // f64 and f32: relative to the largest element
inline constexpr double kRelaxedLowPrecision = 0.02;  // bf16 and f16: relative to the largest element
inline constexpr double kTimesMoved = 4;

class OpByOp {
 public:
  // The inputs may be overwritten afterwards.
  OpByOp(Graph graph, std::span<const Tensor> inputs, bool exact);
  // Runs the graph; call it first. Nodes that need an undefined input are skipped, and their results are undefined.
  // `sums`: the collectives that the compiled run has already sent. They are not sent again: Note [Collectives are
  // effects] in runtime/op/op.h. Null: the graph has no collectives, or they have not been sent. `sums` must outlive
  // this object.
  void run(CollectiveLog* sums = nullptr);
  // Like first_difference(), but compares the operands of the collectives with those that the compiled run has sent
  // (`sums`). The results of the collectives are the same in both.
  std::string first_difference_in(const CollectiveLog& sums) const;

  const Graph& graph() const { return graph_; }
  std::span<const Tensor> inputs() const { return inputs_; }
  // Undefined if its node was skipped.
  const Tensor& value(ValueId id) const { return values_[id]; }
  // Describes how `actual` differs from the value, as "element 3 of [4, 6]: eager 0.5, compiled 0.25"; "" if they are
  // equal (in default mode: within rounding). REQUIRES: the value is defined, and `actual` has its sizes.
  std::string difference(ValueId id, const Tensor& actual) const;
  // Returns the difference() of the first of the graph's outputs that differs; "" if none does.
  std::string first_difference(std::span<const Tensor> outputs) const;

 private:
  ValueMap<Tensor> values_of_run(uint32_t* random) const;
  // Returns the most that a nudge moves an element of the value: Note [What rounding moves].
  double moved(ValueId id) const;

  const Graph graph_;
  const bool exact_;
  std::vector<Tensor> inputs_;  // copies of the inputs
  CollectiveLog* sums_ = nullptr;
  ValueMap<Tensor> values_;
  mutable std::optional<ValueMap<double>> moved_;  // computed at the first call of moved()
};

}  // namespace rondo::compile
