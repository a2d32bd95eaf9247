// What a node that runs may ask of the backward that runs it, and what it may give to it before it ends.
#pragma once

#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/node.h"

namespace rondo::autograd {

// Whether the backward that runs a node is a grad(), which adds nothing to .grad.
bool backward_returns_gradients();

// For the rule of an op: the home of the leaf that is operand `i`, if the gradient that the rule makes is all that the
// leaf gets; else undefined.
Tensor home_of_operand(int i);

// Note [Gradients handed over]. A node that stands for several ops (Node::adds_to_totals) may end the gradient of a
// leaf while it still computes those of other leaves: a compiled region does so at its seams (compile/plan/seams.h).
// The leaf runs at once, as it would after the node: hooks, .grad, callbacks. They may update the leaf, so the node
// must not read it any more. What they throw ends the backward.
//
// True if `to` is a leaf, and somebody waits for its gradient (on_accumulated).
bool is_awaited(const LeafGrad& to);
// Ends the leaf's gradient. `grad`: what the running node adds to it; undefined if it has been added in place
// (`to.added`), or taken in parts. False: `to` is no leaf to which only this is to come; the node returns the gradient
// as usual.
bool hand_over(const LeafGrad& to, Tensor& grad);
// Note [Gradients in parts], for a node that makes several contributions to a leaf. True if they may come in parts.
bool comes_in_parts(const LeafGrad& to);
// A contribution has arrived, and more will. `total`: all so far; moved to .grad if the leaf's GradientParts wants it.
void give_part(const LeafGrad& to, Tensor& total);
// True if somebody took the rows in place of the dense gradient.
bool offer_rows(const LeafGrad& to, const Tensor& rows, const Tensor& indices);

// For the rule of an op that reads rows of its operand 0: true if somebody took the rows in place of the dense
// gradient.
bool offer_rows(const Tensor& rows, const Tensor& indices);
// While in scope: the leaf that is operand 0 of the running rule. Null: it is no leaf.
class RowsOfLeaf {
 public:
  explicit RowsOfLeaf(Node* leaf);
  // For a rule that is traced: `taker` gets the rows.
  explicit RowsOfLeaf(GradientParts& taker);
  ~RowsOfLeaf();
  RowsOfLeaf(const RowsOfLeaf&) = delete;
  RowsOfLeaf& operator=(const RowsOfLeaf&) = delete;

 private:
  Node* previous_;
  GradientParts* previous_taker_;
};

}  // namespace rondo::autograd
