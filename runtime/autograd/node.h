// A node of the tape: what a differentiable call leaves. It computes the gradients of its inputs, and its edges lead to
// the nodes that made them. And grad mode: whether calls of this thread leave nodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {

class Node;

// The place to which a gradient flows: output `output` of `node`. For a leaf, the node that accumulates into its .grad.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
};

struct Hook {
  int64_t id;
  std::function<Tensor(const Tensor&)> fn;
};

// The consumer of a leaf's final gradient: an averager (overwrites it) or an optimizer (frees it).
enum class GradientClaim : uint8_t { kChanges, kUsesUp };

// Receives what the owner of kChanges wants to know of updates (update_facts.h).
class UpdateListener;

// A leaf's .grad. Tape and tensor share it, so that backward can fill it after the tensor handle is gone.
struct GradSlot {
  Tensor grad;
  // The rest is for leaves only.
  std::vector<Hook> hooks;
  // Called when one backward has accumulated the leaf's whole gradient.
  std::vector<std::pair<int64_t, std::function<void()>>> accumulated;
  const char* claims[2] = {};          // the name of each GradientClaim's owner; null if it has none
  UpdateListener* listener = nullptr;  // of the owner of kChanges
};

// A leaf to which only one gradient is still to come in this backward.
struct LeafGrad {
  const Node* leaf = nullptr;  // null: there is no such leaf
  bool added = false;          // the node has added the gradient in place
  // Its .grad; undefined if it must not be written over. Ask only for a leaf that gets a gradient: another thread may
  // be using any other.
  Tensor grad() const;
};

// A program may derive nodes of its own: it makes one, adds the edges of its inputs (gradient_edge), and makes it the
// history of its results (set_history). Inside a compiled region a node of the program's own is a graph break.
class Node {
 public:
  explicit Node(std::source_location where = std::source_location::current());
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual const char* name() const = 0;
  // " (train.cc:41, in h.3.mlp)", or "" if it is not known.
  virtual std::string location() const { return ""; }
  // Computes the gradient of each edge. grads_out has one entry per output, undefined if no gradient reached it; the
  // node may move tensors out of it.
  virtual void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) = 0;
  // True if the node adds to the gradients that its edges have already received, one op after the other, as the ops it
  // stands for would. The tape then calls backward_onto().
  virtual bool adds_to_totals() const { return false; }
  // As backward(), but grads_in[i] holds what edge i has received so far, and the node leaves the new sum there. If
  // leaf_grads[i].grad() is defined, the node may instead add to it in place; it then sets `added` and leaves
  // grads_in[i] undefined.
  virtual void backward_onto(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad> leaf_grads) {
    (void)leaf_grads;
    backward(grads_out, grads_in);
  }
  // For a node that stands for several ops: by output, whether its gradient flows to an edge that is asked for, or to
  // one of `outputs`. Empty: for each output it flows to every edge.
  virtual std::vector<bool> leads_to(const std::vector<bool>& edges_asked, const std::vector<int>& outputs) const {
    (void)edges_asked, (void)outputs;
    return {};
  }
  // Leaf nodes only: the leaf's `.grad` if backward may accumulate into it in place, otherwise undefined.
  virtual Tensor leaf_grad() const { return {}; }
  // Leaf nodes only: runs instead of backward() after another node has accumulated the gradient in place.
  virtual void leaf_grad_added() {}
  // Frees the saved tensors. Runs after a backward without retain_graph; a second backward then throws.
  virtual void release_saved() {}
  // Note [Replaced nodes]. A node that stands for several ops may be replaced, once, by nodes of these ops. A backward
  // that begins later sends the gradient of output i to successor(i) and never comes to this node. One that has counted
  // this node goes on with it. Hooks of an output go to its successor. REQUIRES: replaced.
  virtual const Edge& successor(int output) const;

  absl::InlinedVector<Edge, 3> edges;  // one per input; its node is null if the input needs no gradient
  int n_outputs = 1;
  std::atomic<bool> replaced = false;
  const uint64_t sequence;    // order of creation; a node that replaces another one has that one's
  const uint64_t within = 0;  // order of creation among the nodes that replace one

  // Hooks and retained gradients of one output. Few tensors have any.
  struct OutputExtras {
    int output;
    std::vector<Hook> hooks;
    std::weak_ptr<GradSlot> retained;
  };
  std::vector<OutputExtras> extras;
  OutputExtras& extras_of(int output);  // of a replaced node: its successor's

 protected:
  explicit Node(uint64_t fixed_sequence) : sequence(fixed_sequence) {}
  // For a node of the runtime's own: a recording goes on, and what it has recorded does not run first.
  struct AsRecordingGoesOn {};
  explicit Node(AsRecordingGoesOn);
};

// Autograd state of a tensor. Absent for plain data.
struct AutogradMeta {
  std::shared_ptr<Node> grad_fn;    // null for leaves
  int output = 0;                   // which output of grad_fn
  std::weak_ptr<Node> accumulator;  // leaves: the node that accumulates into `slot`
  std::shared_ptr<GradSlot> slot;   // .grad and leaf hooks
  // Views: the tensor that this one looks into, and the version at which grad_fn was made. See Note [Views].
  Tensor base;
  uint32_t view_version = 0;
  bool no_grad_view = false;  // made under no_grad, or a view of such a view
};

// Grad mode of this thread. It is on by default.
bool grad_enabled();
class GradMode {
 public:
  explicit GradMode(bool on);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool previous_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};
// Calls fn in grad mode off: `no_grad([&] { ... })`.
template <class F> decltype(auto) no_grad(F&& fn) {
  NoGrad off;
  return fn();
}

}  // namespace rondo
#pragma GCC visibility pop
