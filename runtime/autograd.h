// The tape. Each differentiable call leaves a Node that knows its op's VJP, the tensors it saved (with their versions)
// and where its inputs came from. backward() visits nodes in reverse order of creation, so gradients meet in a fixed
// order.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/op.h"
#include "rondo/runtime/source_location.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {

class Node;

// Where a gradient flows: output `output` of `node` (for a leaf, the node that accumulates into its .grad).
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
};

// A tensor kept for backward. get() throws StaleTensorError if it was overwritten since.
class SavedTensor {
 public:
  SavedTensor() = default;
  // `is_output`: saved by the node that makes it; its history is left out, else node and tensor would own each other.
  SavedTensor(const Tensor& tensor, bool is_output);
  const Tensor& get(const char* op, std::source_location where) const;
  bool defined() const { return tensor_.defined(); }

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
};

struct Hook {
  int64_t id;
  std::function<Tensor(const Tensor&)> fn;
};

// Who works on a leaf's gradient while backward runs: one who changes it when it is final (an average over processes),
// one who then uses it up (an update).
enum class GradientClaim : uint8_t { kChanges, kUsesUp };

// The place of an accumulated gradient; shared so that the tape can fill it after the tensor handle is gone.
struct GradSlot {
  Tensor grad;
  std::vector<Hook> hooks;  // of a leaf
  // Of a leaf: called when one backward has added all of its gradient to `grad`.
  std::vector<std::pair<int64_t, std::function<void()>>> accumulated;
  const char* claims[2] = {};  // by GradientClaim; null: nobody's
};

class Node {
 public:
  Node();
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual const char* name() const = 0;
  // grads_out has one entry per output (undefined where none arrived); fills one per edge.
  virtual void backward(std::span<const Tensor> grads_out, std::span<Tensor> grads_in) = 0;
  // If true, backward() finds in grads_in what has already arrived along each edge, and leaves the sum there: a node
  // that stands for several ops adds their contributions one by one, as they would.
  virtual bool adds_to_totals() const { return false; }
  // backward(), for such a node. leaves[i], where defined, is the .grad of the leaf at edges[i] to which nothing else
  // adds in this run: the node may add to it in place, and then leaves it in grads_in[i].
  virtual void backward_onto(std::span<const Tensor> grads_out, std::span<Tensor> grads_in,
                             std::span<const Tensor> leaves) {
    (void)leaves;
    backward(grads_out, grads_in);
  }
  // Of a leaf's end of the tape: its .grad, if a contribution may be added to it in place; else undefined.
  virtual Tensor leaf_total() const { return {}; }
  // Drops saved tensors once backward has run without retain_graph; a second backward then throws.
  virtual void release_saved() {}

  absl::InlinedVector<Edge, 3> edges;  // one per input; a null node where no gradient is needed
  int n_outputs = 1;
  const uint64_t sequence;  // order of creation

  // Hooks and retained gradients of single outputs; rare, so kept apart.
  struct OutputExtras {
    int output;
    std::vector<Hook> hooks;
    std::weak_ptr<GradSlot> retained;
  };
  std::vector<OutputExtras> extras;
  OutputExtras& extras_of(int output);

 protected:
  explicit Node(uint64_t fixed_sequence) : sequence(fixed_sequence) {}
};

// Autograd state of a tensor. Absent for plain data.
struct AutogradMeta {
  std::shared_ptr<Node> grad_fn;    // null for leaves
  int output = 0;                   // which output of grad_fn
  std::weak_ptr<Node> accumulator;  // leaves: the node that adds into `slot`
  std::shared_ptr<GradSlot> slot;   // .grad and leaf hooks
  // Views: the tensor that this one looks into, and the version at which grad_fn was made.
  Tensor base;
  uint32_t view_version = 0;
};

// Grad mode of this thread; on by default.
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
// Calls fn without recording gradients: `no_grad([&] { ... })`.
template <class F> decltype(auto) no_grad(F&& fn) {
  NoGrad off;
  return fn();
}

namespace autograd {

// The edge that a gradient with respect to `tensor` flows along; empty if it needs none.
Edge gradient_edge(const Tensor& tensor);
// Makes `tensor` output `output` of `node`.
void set_history(Tensor& tensor, std::shared_ptr<Node> node, int output);
// Puts a tape node for a call of `op` and makes it the history of `outputs`. Dispatch calls it when a gradient is
// needed.
void record_call(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
                 std::source_location where);
// As record_call for a call that overwrote `target`; if target is a view, its base's history is rebased too.
// `inputs` are the operands before the write: inputs[0] holds the old history (and, if it is saved, the old values).
void record_in_place(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& target,
                     std::source_location where);
// As record_call for an op without a gradient: going backward through `outputs` is an error that names the op.
void record_dead_end(const OpDef& op, std::span<const Tensor* const> inputs, std::span<Tensor> outputs,
                     std::source_location where);
// Throws if `target` cannot be overwritten: it overlaps itself, or that would break autograd (a leaf that requires
// grad, in grad mode).
void check_in_place(const OpDef& op, const Tensor& target, bool differentiable, std::source_location where);
// Remembers that `view` looks into `base`, so that a later write through the view reaches the base's history.
void mark_view(Tensor& view, const Tensor& base);

// Calls fn each time that a backward has finished adding to leaf.grad(), from within that backward. The result is for
// remove_on_accumulated. Throws Error unless `leaf` is a leaf that requires a gradient.
int64_t on_accumulated(const Tensor& leaf, std::function<void()> fn);
void remove_on_accumulated(const Tensor& leaf, int64_t id);

// A claim is for one: a second one would work on what the first has left. `who` is a name for messages, and outlives
// the claim. claim_gradient throws Error if somebody has it, or `leaf` is not a leaf that requires a gradient.
void claim_gradient(const Tensor& leaf, GradientClaim claim, const char* who);
void unclaim_gradient(const Tensor& leaf, GradientClaim claim);
const char* gradient_claim(const Tensor& leaf, GradientClaim claim);  // who has it; null: nobody

// Gradients of `roots` (seeded with `grads`, or 1 for scalars) with respect to `inputs`, returned, not accumulated.
std::vector<Tensor> grad(std::span<const Tensor> roots, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads = {}, bool retain_graph = false, bool create_graph = false,
                         bool allow_unused = false);
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads, bool retain_graph, bool create_graph,
              std::source_location where);

// Activation checkpointing: runs fn without saving, and again during backward. Random numbers are replayed, so both
// runs draw the same dropout masks. fn must not have side effects. While a region is recorded, fn is simply part of it.
std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(std::span<const Tensor>)> fn,
                               std::span<const Tensor> inputs);

}  // namespace autograd
}  // namespace rondo
#pragma GCC visibility pop
