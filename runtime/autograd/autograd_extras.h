// The work of backward() beside running nodes: hooks and retained gradients of a node's outputs. backward() runs them
// before the node; a node that stands for several ops (Node::adds_to_totals) runs them itself, since the gradient of
// one output may flow through another. Such a node also learns which gradients grad() asks for.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"

namespace rondo::autograd {

// Runs the hooks of `node`'s outputs on their complete gradients. A hook may replace a gradient. Then retains what
// retain_grad() asked for.
void apply_extras(Node& node, std::span<Tensor> grads);

// Adds to a retained gradient, or makes it: a copy of its own.
void retain(GradSlot& slot, const Tensor& grad);

// For a leaf whose device or dtype changes: a graph that was made before throws Error, with this text, when a gradient
// of it arrives at the leaf. Its hooks and .grad serve the graphs that come.
void end_graphs_of_leaf(const Tensor& leaf, const std::string& error);

// Note [Gradients in parts]. A leaf that is used several times, as a tied embedding is, gets its gradient in several
// contributions, and backward adds them up before it adds the sum to .grad. An averager need not wait for the last of
// them: it may ask for the sum so far, and may take the last ones as rows of a table. What it takes is no longer part
// of .grad. The leaf's callbacks (on_accumulated) come once, at the end. There are no parts while the leaf has hooks,
// which see whole gradients, under create_graph, under DetectAnomaly, and in grad().
class GradientParts {
 public:
  virtual ~GradientParts() = default;
  // A contribution has arrived, and this backward has more for the leaf. True: add all that has arrived to .grad now.
  virtual bool wants_part() = 0;
  // It was added, since wants_part() said so.
  virtual void part_added() = 0;
  // A contribution: rows (..., C) to be added to those rows of the leaf (V, C) that `indices` (...) name. False: no; it
  // then arrives as a dense one.
  virtual bool take_rows(const Tensor& rows, const Tensor& indices) = 0;
};

// Where the gradient of a leaf is made: memory that its owner, an averager, has chosen. Nodes that write into memory of
// the caller's choice (compiled regions, and ops whose rule asks for home_of_operand()) use it while the leaf has no
// .grad, and the home then is the .grad. All other nodes make the gradient elsewhere; the averager copies it. One home
// for each leaf. Thread safety: as the leaf's .grad.
class GradientHome {
 public:
  // Throws Error unless `leaf` is a leaf that requires grad. No home is set yet.
  explicit GradientHome(const Tensor& leaf);
  ~GradientHome();  // takes the home away
  GradientHome(const GradientHome&) = delete;
  GradientHome& operator=(const GradientHome&) = delete;
  // `home`: dense, with the shape, dtype and device of the leaf. Undefined: none, until the next call.
  void set(Tensor home);
  // Null: the gradient comes in one part. `parts` must outlive this.
  void set_parts(GradientParts* parts);

 private:
  std::shared_ptr<Node> accumulator_;  // kept, so that graphs find this one
};
// The home of a leaf, by its node, if this backward may make the whole .grad there; else undefined.
Tensor gradient_home(const Node& leaf);
// The node whose op's rule runs on this thread; null: none does.
const Node* node_of_rule();
// For the rule of an op: the home of the leaf that is operand `i`, if the gradient that the rule makes is all that the
// leaf gets; else undefined.
Tensor home_of_operand(int i);
// As rondo::call(). homes[i]: the memory that output i is wanted in, or undefined. Where it does not fit, or no single
// kernel makes the output, it is made elsewhere.
void call(const OpDef& op, std::span<const TensorArg> inputs, std::span<Tensor> outputs, std::span<const Tensor> homes);

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

// For backward(): the end of the tape at a leaf.
inline bool is_leaf_node(const Node& node) { return node.sequence == UINT64_MAX; }
// Null while gradients of the leaf must not come in parts.
GradientParts* parts_of(const Node& leaf);
bool has_callbacks(const Node& leaf);
// A contribution has arrived at `leaf`, and more will. `total`: all so far. It is moved to .grad if the leaf's
// GradientParts wants it; the result says so.
bool offer_part(Node& leaf, Tensor& total);
// The leaf's contributions have arrived by other ways than this backward's sum: in parts, or from within a checkpoint.
void complete_leaf(Node& leaf);
// True if another backward of this thread, in which this one runs (activation_checkpoint.cc), has more for the leaf.
// That one then calls complete_leaf().
bool outer_backward_has_more(const Node& leaf);

// For the rule of an op that reads rows of its operand 0: true if somebody took the rows in place of the dense
// gradient.
bool offer_rows(const Tensor& rows, const Tensor& indices);
// What such a rule computes: total (V, C) += rows (..., C) at indices (...), in the order of the indices; in place.
void add_rows(const Tensor& total, const Tensor& rows, const Tensor& indices);
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

// While in scope: ops of this thread that run under no_grad note here which leaves that require grad they read. A
// checkpoint is thereby known to use them.
class LeafNotes {
 public:
  LeafNotes();
  ~LeafNotes();
  LeafNotes(const LeafNotes&) = delete;
  LeafNotes& operator=(const LeafNotes&) = delete;
  static LeafNotes* now();  // null: nobody wants to know
  void note(const Tensor& operand);
  std::vector<std::shared_ptr<Node>> take() { return std::move(leaves_); }

 private:
  LeafNotes* previous_;
  std::vector<std::shared_ptr<Node>> leaves_;  // each once
};

// While in scope: what grad() asks of the running node.
class Asked {
 public:
  // `edges`: by edge, whether its gradient is asked for, or one below it. `outputs`: those whose own gradient is.
  Asked(std::vector<bool> edges, std::vector<int> outputs);
  // backward() asks for everything.
  Asked();
  ~Asked();
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  static const Asked* now();  // null: for everything

  const std::vector<bool> edges;
  const std::vector<int> outputs;

 private:
  const Asked* previous_;
};

// While in scope: nodes that this thread makes take the place of `node` in the order of a backward, among themselves in
// the order of creation. They are going to replace it: Note [Replaced nodes] in autograd.h.
class InPlaceOf {
 public:
  explicit InPlaceOf(const Node& node);
  ~InPlaceOf();
  InPlaceOf(const InPlaceOf&) = delete;
  InPlaceOf& operator=(const InPlaceOf&) = delete;

 private:
  const Node* previous_;
};

}  // namespace rondo::autograd
