// The work of backward() beside running nodes: hooks and retained gradients of a node's outputs. backward() runs them
// before the node; a node that stands for several ops (Node::adds_to_totals) runs them itself, since the gradient of
// one output may flow through another. Such a node also learns which gradients grad() asks for.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rondo/runtime/autograd.h"

namespace rondo::autograd {

// Runs the hooks of `node`'s outputs on their complete gradients. A hook may replace a gradient. Then retains what
// retain_grad() asked for.
void apply_extras(Node& node, std::span<Tensor> grads);

// Adds to a retained gradient, or makes it: a copy of its own.
void retain(GradSlot& slot, const Tensor& grad);

// For a leaf whose device or dtype changes: a graph that was made before throws Error, with this text, when a gradient
// of it arrives at the leaf. Its hooks and .grad serve the graphs that come.
void end_graphs_of_leaf(const Tensor& leaf, const std::string& error);

// Where the gradient of a leaf is made: memory that its owner, an averager, has chosen. Nodes that write into memory of
// the caller's choice (compiled regions) use it while the leaf has no .grad, and the home then is the .grad. All other
// nodes make the gradient elsewhere; the averager copies it. One home for each leaf. Thread safety: as the leaf's
// .grad.
class GradientHome {
 public:
  // Throws Error unless `leaf` is a leaf that requires grad. No home is set yet.
  explicit GradientHome(const Tensor& leaf);
  ~GradientHome();  // takes the home away
  GradientHome(const GradientHome&) = delete;
  GradientHome& operator=(const GradientHome&) = delete;
  // `home`: dense, with the shape, dtype and device of the leaf. Undefined: none, until the next call.
  void set(Tensor home);

 private:
  std::shared_ptr<Node> accumulator_;  // kept, so that graphs find this one
};
// The home of a leaf, by its node, if this backward may make the whole .grad there; else undefined.
Tensor gradient_home(const Node& leaf);

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

// The history that the results which `node` has saved get for a second derivative: `to`, output by output, instead of
// `node` itself. Whoever calls this keeps `to` alive.
void set_history_of_saved_results(Node& node, const std::shared_ptr<Node>& to);

}  // namespace rondo::autograd
