// Node: a node of the tape, made by a differentiable call. It computes the gradients of the call's inputs, and its
// edges lead to the nodes that made these inputs. GradMode: whether calls of this thread make nodes.
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

// Who consumes a leaf's final gradient: an averager overwrites it, an optimizer frees it.
enum class GradientClaim : uint8_t { kAverager, kOptimizer };

// Tells the averager about updates of the leaf (optim/update_facts.h).
class UpdateListener;

// The .grad of a tensor. Tape and tensor share the slot, so that backward can fill it after the tensor handle is gone.
struct GradSlot {
  Tensor grad;
  // For a tensor with a history: the node on which hook `id` was registered. An in-place write gives the tensor another
  // node, and the hook stays with the old one.
  struct HookPlace {
    int64_t id;
    std::weak_ptr<Node> node;
    int output;
  };
  std::vector<HookPlace> hook_places;
  // The members below are for leaves only.
  std::vector<Hook> hooks;
  // Called when one backward has accumulated the leaf's whole gradient.
  std::vector<std::pair<int64_t, std::function<void()>>> accumulated;
  const char* claims[2] = {};          // the name of each GradientClaim's owner; null if it has none
  UpdateListener* listener = nullptr;  // the averager's listener; null if there is none
};

// A leaf that waits for only one more contribution to its gradient in this backward.
struct LeafGrad {
  const Node* leaf = nullptr;  // null: there is no such leaf
  bool added = false;          // the node has added the gradient in place
  // Returns the leaf's .grad, or an undefined tensor if it must not be overwritten. Call this only for a leaf that gets
  // a gradient from the node: another thread may be using any other leaf.
  Tensor grad() const;
};

// A program may derive its own nodes: it makes a node, adds an edge for each input (gradient_edge()), and makes the
// node the history of its results (set_history()). Inside a compiled region such a node is a graph break.
class Node {
 public:
  explicit Node(std::source_location where = std::source_location::current());
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual const char* name() const = 0;
  // Returns the place of the call that made the node, " (train.cc:41, in h.3.mlp)", or "" if it is not known.
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
  // For a node that stands for several ops. Returns for each output whether its gradient contributes to a requested
  // edge, or to the gradient of one of the node's own outputs that are listed in `outputs` (inside of the node one
  // output may be computed from another). An empty result: every output contributes to every edge.
  virtual std::vector<bool> leads_to(const std::vector<bool>& requested_edges, const std::vector<int>& outputs) const {
    (void)requested_edges, (void)outputs;
    return {};
  }
  // Leaf nodes only: the leaf's `.grad` if backward may accumulate into it in place, otherwise undefined.
  virtual Tensor leaf_grad() const { return {}; }
  // Leaf nodes only: runs instead of backward() after another node has accumulated the gradient in place.
  virtual void leaf_grad_added() {}
  // Frees the saved tensors. Runs after a backward without retain_graph; a second backward then throws.
  virtual void release_saved() {}
  // Note [Replaced nodes]. A node that stands for several ops may be replaced, once, by nodes of these ops. A backward
  // that begins later sends the gradient of output i to successor(i) and never runs this node. A backward that began
  // before, and has counted this node, still runs it. Hooks of an output move to its successor. REQUIRES: replaced.
  virtual const Edge& successor(int output) const;

  absl::InlinedVector<Edge, 3> edges;  // one per input; its node is null if the input needs no gradient
  int n_outputs = 1;
  std::atomic<bool> replaced = false;
  const uint64_t sequence;    // order of creation; a replacement has the number of the node it replaces
  const uint64_t within = 0;  // order of creation among the replacements of one node

  // Hooks and retained gradients of one output. Few tensors have any.
  struct OutputExtras {
    int output;
    std::vector<Hook> hooks;
    std::weak_ptr<GradSlot> retained;
  };
  std::vector<OutputExtras> extras;
  OutputExtras& extras_of(int output);  // for a replaced node: those of its successor

 protected:
  explicit Node(uint64_t fixed_sequence) : sequence(fixed_sequence) {}
  // For nodes that the runtime itself makes: such a node is no graph break, and recorded ops need not run before it.
  struct AsRecordingGoesOn {};
  explicit Node(AsRecordingGoesOn);
};

// Autograd state of a tensor. Absent for plain data.
struct AutogradMeta {
  std::shared_ptr<Node> grad_fn;    // null for leaves
  int output = 0;                   // which output of grad_fn
  std::weak_ptr<Node> accumulator;  // leaves: the node that accumulates into `slot`
  std::shared_ptr<GradSlot> slot;   // .grad and leaf hooks
  // Views: the tensor that this one is a view of, and the version at which grad_fn was made.
  // See Note [Views] in history.h.
  Tensor base;
  uint32_t view_version = 0;
  bool no_grad_view = false;     // made under no_grad, or a view of such a view
  bool in_memory_order = false;  // its first history is that of Note [Rules in memory order] in op_node.cc
};

// Returns the grad mode of this thread. It is on by default.
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
