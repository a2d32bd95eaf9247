// The end of the tape at a leaf: a node that adds to .grad, or makes it in its home. And what the leaf's owner, an
// averager, may ask of it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/autograd/node.h"

namespace rondo::autograd {

// The node that accumulates into the .grad of `leaf`: the one that graphs have, or a new one. Makes the leaf's slot.
std::shared_ptr<Node> accumulator_of(const Tensor& leaf);
inline bool is_leaf_node(const Node& node) { return node.sequence == UINT64_MAX; }

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
// For a leaf whose device or dtype changes: a graph that was made before throws Error, with this text, when a gradient
// of it arrives at the leaf. Its hooks and .grad serve the graphs that come.
void end_graphs_of_leaf(const Tensor& leaf, const std::string& error);

// While in scope: ops of this thread that run under no_grad note here which leaves that require grad they read. A
// checkpoint is thereby known to use them.
class LeafNotes {
 public:
  // `inputs` of the checkpoint `node`: any other tensor that has a history from before the checkpoint is refused.
  LeafNotes(const Node& node, std::span<const Tensor> inputs);
  ~LeafNotes();
  LeafNotes(const LeafNotes&) = delete;
  LeafNotes& operator=(const LeafNotes&) = delete;
  static LeafNotes* now();  // null: nobody wants to know
  // Throws Error for a tensor that the checkpoint's function has to get as an input.
  void note(const Tensor& operand);
  const std::vector<Tensor>& leaves() const { return leaves_; }  // each once

 private:
  LeafNotes* previous_;
  const Node& node_;
  std::span<const Tensor> inputs_;
  std::vector<Tensor> leaves_;
};

// ---- For backward()

bool has_hooks(const Node& leaf);
// Null while gradients of the leaf must not come in parts.
GradientParts* parts_of(const Node& leaf);
bool has_callbacks(const Node& leaf);
// A contribution has arrived at `leaf`, and more will. `total`: all so far. It is moved to .grad if the leaf's
// GradientParts wants it; the result says so.
bool offer_part(Node& leaf, Tensor& total);
// As offer_part(), for a contribution that has been added to .grad already.
void notify_part_added(Node& leaf);
// The leaf's whole gradient is in .grad: calls what waits for it (on_accumulated).
void run_accumulated_callbacks(Node& leaf);

}  // namespace rondo::autograd
