// The node at the end of the tape that accumulates a leaf's gradient into .grad, and what an averager may
// ask of this node.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/autograd/node.h"

namespace rondo::autograd {

// Returns the node that accumulates into the .grad of `leaf`: the one that existing graphs lead to, or a new one.
// Creates the leaf's GradSlot if it has none.
std::shared_ptr<Node> accumulator_of(const Tensor& leaf);
inline bool is_leaf_node(const Node& node) { return node.sequence == UINT64_MAX; }

// Note [Gradients in parts]. A leaf that is used several times, as a tied embedding is, gets its gradient in several
// contributions, and backward adds them up before it adds the sum to .grad. An averager need not wait for the last
// contribution: it may request that the sum so far is added to .grad, and it may take a contribution as rows of the
// leaf (take_rows()). Rows that the averager takes are not added to .grad. The leaf's callbacks (on_accumulated) run
// once, at the end. Gradients come in one part while the leaf has hooks (hooks see whole gradients), under
// create_graph, under DetectAnomaly, and in grad().
class GradientParts {
 public:
  virtual ~GradientParts() = default;
  // Called when a contribution has arrived and more will follow in this backward. Returns true if the sum so far shall
  // be added to .grad now.
  virtual bool wants_part() = 0;
  // Called after the sum so far was added to .grad because wants_part() returned true.
  virtual void part_added() = 0;
  // Offers a contribution as rows (..., C), to be added to the rows of the leaf (V, C) that `indices` (...) name.
  // Returns false if the averager does not take the rows; the contribution then arrives as a dense gradient.
  virtual bool take_rows(const Tensor& rows, const Tensor& indices) = 0;
};

// Memory that an averager has chosen for the gradient of a leaf. Nodes that can write into memory of the caller's
// choice (compiled regions, and ops whose gradient rule calls home_of_operand()) write the gradient there while the
// leaf has no .grad; the home then becomes the .grad. Other nodes allocate the gradient themselves, and the averager
// copies it. A leaf has at most one home. Thread safety: as that of the leaf's .grad.
class GradientHome {
 public:
  // Throws Error unless `leaf` is a leaf that requires grad. No home is set yet.
  explicit GradientHome(const Tensor& leaf);
  ~GradientHome();  // the leaf then has no home
  GradientHome(const GradientHome&) = delete;
  GradientHome& operator=(const GradientHome&) = delete;
  // Sets the home, or removes it if `home` is undefined. `home`: dense, with the shape, dtype and device of the leaf.
  void set(Tensor home);
  // Sets what receives the leaf's gradient in parts. Null: the gradient comes in one part. `parts` must outlive this
  // object.
  void set_parts(GradientParts* parts);

 private:
  std::shared_ptr<Node> accumulator_;  // kept alive, so that later graphs use this node
};
// Returns the home of the leaf whose node is `leaf`, if the running backward may write the whole .grad into the home.
// Otherwise returns an undefined tensor.
Tensor gradient_home(const Node& leaf);
// Ends the existing graphs that lead to `leaf`, because the leaf's device or dtype is about to change: such a graph
// throws Error with the message `error` when its gradient arrives at the leaf. Later graphs use the leaf's hooks and
// .grad as before.
void end_graphs_of_leaf(const Tensor& leaf, const std::string& error);

// While in scope, collects the leaves that require grad and that ops of this thread read under no_grad. A checkpoint
// learns from it which leaves its function captures.
class LeafNotes {
 public:
  // `inputs`: the inputs of the checkpoint `node`. For any other tensor that requires grad and was computed before the
  // checkpoint, note() throws Error.
  LeafNotes(const Node& node, std::span<const Tensor> inputs);
  ~LeafNotes();
  LeafNotes(const LeafNotes&) = delete;
  LeafNotes& operator=(const LeafNotes&) = delete;
  static LeafNotes* now();  // null: none is in scope
  // Throws Error for a tensor that the checkpoint's function has to get as an input.
  void note(const Tensor& operand);
  const std::vector<Tensor>& leaves() const { return leaves_; }  // each leaf once

 private:
  LeafNotes* previous_;
  const Node& node_;
  std::span<const Tensor> inputs_;
  std::vector<Tensor> leaves_;
};

// ---- Functions that backward() calls

bool has_hooks(const Node& leaf);
// Returns the leaf's GradientParts, or null while gradients of the leaf must not come in parts.
GradientParts* parts_of(const Node& leaf);
bool has_callbacks(const Node& leaf);
// Called when a contribution has arrived at `leaf` and more will follow. `total`: the sum so far. If the leaf's
// GradientParts wants the sum, moves it to .grad and returns true.
bool offer_part(Node& leaf, Tensor& total);
// Calls part_added() of the leaf's GradientParts if its wants_part() returns true. Call this after a contribution that
// did not go through offer_part() was added to .grad.
void notify_part_added(Node& leaf);
// Runs the callbacks of on_accumulated(). REQUIRES: the leaf's whole gradient is in .grad.
void run_accumulated_callbacks(Node& leaf);

}  // namespace rondo::autograd
