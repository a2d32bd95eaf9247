// What a running node may ask of the backward that runs it, and how it completes the gradient of a leaf early.
#pragma once

#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/node.h"

namespace rondo::autograd {

// True if the running backward is a grad(), which adds nothing to .grad.
bool backward_returns_gradients();

// Called by an op's gradient rule. Returns the home (GradientHome) of the leaf that is operand `i`, if the rule makes
// the leaf's whole gradient; otherwise an undefined tensor.
Tensor home_of_operand(int i);

// Note [Early leaf gradients]. A node that stands for several ops (Node::adds_to_totals) may complete the gradient of
// a leaf while it still computes the gradients of other leaves. A compiled region does so at its seams
// (compile/plan/seams.h). The leaf's node then runs at once, not after this node: it runs hooks, adds to .grad and runs
// callbacks. Callbacks may update the leaf, so this node must not read the leaf any more. An exception from a hook or a
// callback ends the backward.
//
// True if `to` is a leaf whose gradient has callbacks (on_accumulated).
bool is_awaited(const LeafGrad& to);
// Completes the leaf's gradient. `grad`: the running node's contribution; undefined if it was added in place
// (`to.added`) or taken in parts. Returns false if `to` is not a leaf, or waits for other contributions, too; the node
// then returns the gradient as usual.
bool complete_leaf(const LeafGrad& to, Tensor& grad);
// Called by a node that makes several contributions to a leaf. True if the node may give the contributions in parts
// (Note [Gradients in parts] in accumulate_node.h).
bool comes_in_parts(const LeafGrad& to);
// Gives a part, when a contribution is made and more will follow. `total`: the sum so far, which is moved to .grad if
// the leaf's GradientParts wants it.
void give_part(const LeafGrad& to, Tensor& total);
// Offers rows instead of a dense gradient. Returns true if the leaf's GradientParts took them.
bool offer_rows(const LeafGrad& to, const Tensor& rows, const Tensor& indices);

// Offers rows as the function above does, from the gradient rule of an op that reads rows of its operand 0.
bool offer_rows(const Tensor& rows, const Tensor& indices);
// While in scope: `leaf` is operand 0 of the running rule, and offer_rows() offers rows to it. Null: operand
// 0 is no leaf.
class RowsOfLeaf {
 public:
  explicit RowsOfLeaf(Node* leaf);
  // For a gradient rule that is traced: offer_rows() offers the rows to `taker`.
  explicit RowsOfLeaf(GradientParts& taker);
  ~RowsOfLeaf();
  RowsOfLeaf(const RowsOfLeaf&) = delete;
  RowsOfLeaf& operator=(const RowsOfLeaf&) = delete;

 private:
  Node* previous_;
  GradientParts* previous_taker_;
};

}  // namespace rondo::autograd
