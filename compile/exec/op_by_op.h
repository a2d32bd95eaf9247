// OpByOp: a graph run op by op, by the ops' own kernels: what compiled results are compared with.
//
// Note [What rounding moves]. In exact mode no bit may differ. In default mode a compiled program rounds in other
// places
//   and adds up in another order than eager execution. What that does to a number depends on how it is computed: where
//   terms cancel, nothing is left but their rounding. The gradient of a bias before a normalisation is such a number:
//   it is 0. So its distance from eager's is no share of the largest element. Where a result differs by more than such
//   a share, the graph runs again, three times, with each number nudged by up to a unit in its last place: the inputs,
//   and what each op computes. A result may differ by kTimesMoved times as much as the nudges move it. A comparison
//   that a nudge turns round moves what follows from it, too.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/autograd/collective_log.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

inline constexpr double kRelaxed = 1e-5;              // f64 and f32: of the largest element
inline constexpr double kRelaxedLowPrecision = 0.02;  // bf16 and f16
inline constexpr double kTimesMoved = 4;

class OpByOp {
 public:
  // The inputs may be overwritten afterwards.
  OpByOp(Graph graph, std::span<const Tensor> inputs, bool exact);
  // Runs the graph; call it first. Nodes that need an input which is undefined are left out, and so are their results.
  // `sums`: the collectives of the compiled run, which has sent them already. Nothing is sent: Note [Collectives are
  // effects] in runtime/op/op.h. Null: the graph has no collectives, or nobody has sent them. It outlives this.
  void run(CollectiveLog* sums = nullptr);
  // What differs in the operands of the collectives of `sums`, sent by the compiled run, as first_difference(). Their
  // results are the same ones in both.
  std::string first_difference_in(const CollectiveLog& sums) const;

  const Graph& graph() const { return graph_; }
  std::span<const Tensor> inputs() const { return inputs_; }
  // Undefined: it was left out.
  const Tensor& value(ValueId id) const { return values_[id]; }
  // "element 3 of [4, 6]: eager 0.5, compiled 0.25"; "" if they are equal, in default mode but for rounding.
  // REQUIRES: the value is defined, and `actual` has its sizes.
  std::string difference(ValueId id, const Tensor& actual) const;
  // The same of the first of the graph's outputs that differs.
  std::string first_difference(std::span<const Tensor> outputs) const;

 private:
  ValueMap<Tensor> values_of_run(uint32_t* random) const;
  // The most that an element of the value moves: Note [What rounding moves].
  double moved(ValueId id) const;

  const Graph graph_;
  const bool exact_;
  std::vector<Tensor> inputs_;  // copies
  CollectiveLog* sums_ = nullptr;
  ValueMap<Tensor> values_;
  mutable std::optional<ValueMap<double>> moved_;  // known when the first value asks
};

}  // namespace rondo::compile
