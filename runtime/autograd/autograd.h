// The tape. Each differentiable call leaves a Node. The node knows its op's VJP, the tensors it saved (with their
// versions), and the nodes that made its inputs. backward() visits nodes in reverse order of creation, so gradients are
// summed in a fixed order.
//
//   {
//     NoGrad off;                                   // nothing is recorded in this scope
//     w.add_(update);
//   }
//   auto grads = autograd::grad({&loss, 1}, inputs);  // returned, not accumulated into .grad
//
// Note [Views]. A view remembers its base, so that a write through the view reaches the base's history and a write to
// the base reaches the view's. A view made under no_grad has no history. A write to it is an error in grad mode if a
// gradient would pass through the write or through the base. Once its base was overwritten, reading it is an error,
// too, where a gradient would pass. detach() gives a tensor that is no view in this sense.
//
// Note [Gradients do not alias]. After backward(), the .grad of a leaf shares memory with no other .grad, not with the
// gradient the caller passed in, and not with what a hook returned. The results of grad() share memory neither with
// each other nor with the caller's gradients. The one exception is set_grad(), which keeps the tensor it is given.
//
// Thread safety: grad mode is a setting of the thread. Two threads may run backward() at the same time if no leaf, hook
// or retained gradient is reached by both.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {

class Node;

// The place to which a gradient flows: output `output` of `node`. For a leaf, the node that accumulates into its .grad.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
};

// A tensor saved for backward. get() throws StaleTensorError if the tensor was overwritten in place after it was saved.
class SavedTensor {
 public:
  SavedTensor() = default;
  // `is_output`: the node that saves the tensor also made it. The saved tensor then leaves out its history, because
  // otherwise node and tensor would own each other.
  SavedTensor(const Tensor& tensor, bool is_output, std::source_location where = std::source_location::current());
  const Tensor& get(const char* op, std::source_location where) const;
  bool defined() const { return tensor_.defined(); }
  bool overwritten() const { return tensor_.defined() && tensor_.version() != version_; }

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
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

namespace autograd {

// The edge along which the gradient of `tensor` flows; empty if it needs none. Throws Error for a view made under
// no_grad whose base was overwritten since (Note [Views]). Inside a compiled region, a graph break if `tensor` is the
// result of an op there.
Edge gradient_edge(const Tensor& tensor, std::source_location where = std::source_location::current());
// Makes `tensor`, of a floating dtype, output `output` of `node`. What was computed from it before keeps its own
// history. Inside a compiled region, a graph break if an op there has made or read `tensor`.
void set_history(Tensor& tensor, std::shared_ptr<Node> node, int output,
                 std::source_location where = std::source_location::current());
// Puts a node for a call of `op` on the tape and makes it the history of `outputs`. Dispatch calls it when a gradient
// is needed.
void record_call(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
                 std::source_location where);
// As record_call, for a call that overwrote `target`. If target is a view, its base gets a new history, too. `inputs`
// are the operands before the write: inputs[0] has the old history, and the old values if the op saves them.
void record_in_place(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& target,
                     std::source_location where);
// As record_call, for an op without a gradient: a backward that reaches it throws an Error that names the op.
void record_dead_end(const OpDef& op, std::span<const Tensor* const> inputs, std::span<Tensor> outputs,
                     std::source_location where);
// Throws Error if `target` must not be overwritten: two of its elements share memory, or the write would make a
// gradient wrong. `differentiable`: a gradient passes through the write.
void check_in_place(const OpDef& op, const Tensor& target, bool differentiable, std::source_location where);
// Throws Error if operand `input` is a view made under no_grad whose base was overwritten since, and the base requires
// grad.
void check_operand(const OpDef& op, const Tensor& input, std::source_location where);
// True if two elements of `tensor` share memory, as those of an expanded tensor do.
bool overlaps_itself(const Tensor& tensor);
// Makes `base` (or base's own base) the base of `view`: Note [Views]. `under_no_grad`: the view was made under no_grad.
void mark_view(Tensor& view, const Tensor& base, bool under_no_grad);
// For a view that is only recorded, and gets its base when its region has run.
void mark_no_grad_view(Tensor& view);
bool is_no_grad_view(const Tensor& tensor);

// Calls fn at the end of each accumulation into leaf.grad(), from within backward(). Returns an id for
// remove_on_accumulated. Throws Error unless `leaf` is a leaf that requires grad.
int64_t on_accumulated(const Tensor& leaf, std::function<void()> fn);
void remove_on_accumulated(const Tensor& leaf, int64_t id);

// A claim has one owner: a second one would see what the first has left. `who` names the owner in messages and must
// outlive the claim. claim_gradient throws Error if the claim has an owner, or if `leaf` is not a leaf that requires
// grad.
void claim_gradient(const Tensor& leaf, GradientClaim claim, const char* who, UpdateListener* listener = nullptr);
void unclaim_gradient(const Tensor& leaf, GradientClaim claim);
const char* gradient_claim(const Tensor& leaf, GradientClaim claim);  // the owner; null if there is none
UpdateListener* update_listener(const Tensor& leaf);                  // of the owner of kChanges; null if it has none

// The gradients of `roots` with respect to `inputs`. They are returned, not accumulated into .grad. grads[i] is the
// gradient of roots[i]; if it is missing or undefined, roots[i] must have one element, and its gradient is 1.
std::vector<Tensor> grad(std::span<const Tensor> roots, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads = {}, bool retain_graph = false, bool create_graph = false,
                         bool allow_unused = false, std::source_location where = std::source_location::current());
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads, bool retain_graph, bool create_graph,
              std::source_location where);

// Activation checkpointing: runs fn without saving tensors, and runs it again during backward. Both runs draw the same
// random numbers, from whatever generators fn uses on this thread; the second run leaves each generator as it found it.
// Collectives (ops::all_reduce_sum) are made once: the checkpoint keeps their sums for the second run. fn must not have
// other side effects. While a region is recorded, fn is simply part of it.
std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(std::span<const Tensor>)> fn,
                               std::span<const Tensor> inputs);

}  // namespace autograd
}  // namespace rondo
#pragma GCC visibility pop
