// One backward pass over the tape. A node runs when all gradients of its outputs have arrived; of the nodes that can
// run, the one made last runs first.
#include "rondo/runtime/autograd/backward.h"

#include <queue>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/autograd/hooks.h"
#include "rondo/runtime/autograd/node_scope.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::autograd {
namespace {

class Backward;
thread_local Backward* innermost = nullptr;  // the innermost backward that runs on this thread

// One run of backward() or grad() over the tape.
class Backward {
 public:
  Backward(bool retain_graph, bool create_graph) : retain_graph_(retain_graph), mode_(create_graph) {
    tasks_.reserve(16);  // small tapes are common, and a table that grows costs more than one of that size
  }

  Tensor home_of(const Node& node, int i) const {
    if (captured_ || static_cast<size_t>(i) >= node.edges.size() || node.edges[i].node == nullptr) return {};
    Node* const leaf = node.edges[i].node.get();
    const auto task = tasks_.find(leaf);
    if (!is_leaf_node(*leaf) || task == tasks_.end() || task->second.waiting != 1) return {};
    for (const Tensor& grad : task->second.grads)
      if (grad.defined()) return {};
    return gradient_home(*leaf);
  }
  const Node* running() const { return running_; }
  bool returns_gradients() const { return captured_; }
  // Notes that a contribution to the leaf's gradient has gone to .grad or to GradientParts, so this backward's sum
  // lacks it.
  void note_partial_delivery(const Node& leaf) {
    if (const auto task = tasks_.find(const_cast<Node*>(&leaf)); task != tasks_.end())
      task->second.partly_delivered = true;
  }

  // Completes the leaf's gradient early: Note [Early leaf gradients]. `grad`: the running node's contribution.
  void complete_leaf(const Node& node, Tensor grad) {
    Node* const leaf = const_cast<Node*>(&node);
    Task& task = tasks_[leaf];
    task.waiting = 0;
    task.completed = true;
    const bool arrives = grad.defined(), partly_delivered = task.partly_delivered;
    if (arrives && give_to_outer(*leaf, grad)) return;
    if (arrives) leaf->backward({&grad, 1}, {});
    else if (!partly_delivered) leaf->leaf_grad_added();
    leaf_completed(*leaf, arrives || !partly_delivered);
  }
  void give_part(const Node& node, Tensor& total) {
    Node* const leaf = const_cast<Node*>(&node);
    tasks_[leaf].partly_delivered |= offer_part(*leaf, total);
  }

  void seed(const Edge& edge, Tensor grad) {
    roots_.push_back(edge.node);
    add(*edge.node, edge.output, std::move(grad));
  }
  // Requests a gradient: the gradient that arrives at `edge` will become captured[index].
  void capture(const Edge& edge, size_t index) { captures_[edge.node.get()].push_back({edge.output, index}); }

  void run(std::vector<Tensor>* captured) {
    outer_ = std::exchange(innermost, this);
    const absl::Cleanup end = [this] { innermost = outer_; };
    count_dependencies();
    captured_ = captured != nullptr;
    if (captured_) find_needed();
    std::priority_queue<Node*, std::vector<Node*>, LaterFirst> ready;
    for (auto& [node, task] : tasks_)
      if (task.waiting == 0) ready.push(node);
    std::vector<Tensor> grads_in;
    std::vector<LeafGrad> leaf_grads;
    while (!ready.empty()) {
      Node* node = ready.top();
      ready.pop();
      running_ = node;
      std::vector<Tensor> grads = std::move(tasks_[node].grads);
      grads.resize(static_cast<size_t>(node->n_outputs));
      drop_unrequested(node, grads);
      bool any = false;
      for (Tensor& grad : grads) any = any || grad.defined();
      const bool needed = captured == nullptr || needed_.contains(node);
      const auto capture = captures_.find(node);
      const bool captures = capture != captures_.end();
      grads_in.assign(needed ? node->edges.size() : 0, Tensor());
      const LastRead last(!retain_graph_);
      if (tasks_[node].added_in_place) {
        node->leaf_grad_added();
        leaf_completed(*node, true);
      } else if (tasks_[node].partly_delivered && !(any && needed)) {
        leaf_completed(*node, false);
      } else if (node->adds_to_totals()) {
        leaf_grads.assign(grads_in.size(), LeafGrad());
        for (size_t i = 0; i < grads_in.size(); ++i) {
          if (!any || !node->edges[i].node) continue;
          const Edge& edge = target(node->edges[i]);
          grads_in[i] = take(edge);
          if (!grads_in[i].defined() && captured == nullptr && tasks_[edge.node.get()].waiting == 1)
            leaf_grads[i].leaf = edge.node.get();
        }
        if (captures) watch(*node, capture->second, *captured);
        const absl::Cleanup done = [&] {
          if (captures) unwatch(*node, capture->second);
        };
        if (any && captured == nullptr) {
          const RequestedGradients everything;
          node->backward_onto(grads, grads_in, leaf_grads);
        } else if (any && (needed || captures)) {
          const RequestedGradients some(requested_edges(*node), captured_outputs(node));
          node->backward_onto(grads, grads_in, leaf_grads);
        }
        for (size_t i = 0; i < leaf_grads.size(); ++i)
          if (leaf_grads[i].added) tasks_[node->edges[i].node.get()].added_in_place = true;
        leaf_grads.clear();
      } else {
        if (any && (needed || captures)) apply_extras(*node, grads);
        if (captures)
          for (auto [output, index] : capture->second) (*captured)[index] = grads[static_cast<size_t>(output)];
        const bool runs = any && needed && !(is_leaf_node(*node) && give_to_outer(*node, grads[0]));
        if (runs) node->backward(grads, grads_in);
        if (runs && is_leaf_node(*node)) leaf_completed(*node, true);
      }
      grads.clear();
      // Saved tensors are released before gradients are passed on: a gradient may be one of the saved tensors, and may
      // be overwritten once it is passed on.
      if (!retain_graph_ && needed && any) node->release_saved();
      for (size_t i = 0; i < node->edges.size(); ++i) {
        if (!node->edges[i].node) continue;
        const Edge& edge = target(node->edges[i]);
        const bool arrives = needed && grads_in[i].defined();
        if (arrives) add(*edge.node, edge.output, std::move(grads_in[i]));
        Task& task = tasks_[edge.node.get()];
        if (task.completed) continue;
        if (--task.waiting == 0) ready.push(edge.node.get());
        else if (arrives && captured == nullptr && is_leaf_node(*edge.node))
          task.partly_delivered |= offer_part(*edge.node, task.grads[0]);
      }
    }
  }

 private:
  struct Task {
    std::vector<Tensor> grads;
    int waiting = 0;
    bool added_in_place = false;  // leaves only: LeafGrad::added
    // Leaves only: a contribution went to .grad or to GradientParts, and is not in `grads`.
    bool partly_delivered = false;
    bool completed = false;  // leaves only: Note [Early leaf gradients]
    bool counted = false;    // true once the node's edges are counted in `waiting` of the nodes that they lead to
  };
  struct LaterFirst {
    bool operator()(const Node* a, const Node* b) const {
      return a->sequence != b->sequence ? a->sequence < b->sequence : a->within < b->within;
    }
  };

  // Called when this backward's gradient of the leaf is in .grad. `added`: a contribution was added just now. Runs the
  // leaf's callbacks, unless this backward runs inside of another one (activation_checkpoint.cc) that will contribute
  // to the leaf: then the outer backward runs them.
  void leaf_completed(Node& leaf, bool added) {
    if (Backward* const outer = outer_that_waits_for(leaf); outer == nullptr) return run_accumulated_callbacks(leaf);
    else outer->tasks_.find(&leaf)->second.partly_delivered = true;
    if (added) notify_part_added(leaf);
  }
  // Hooks see whole gradients. So for a leaf with hooks, this backward's gradient is added to the sum of an outer
  // backward that has more contributions. Returns false, and does nothing, if there is no such leaf or outer backward.
  bool give_to_outer(Node& leaf, Tensor& grad) {
    Backward* const outer = has_hooks(leaf) ? outer_that_waits_for(leaf) : nullptr;
    if (outer == nullptr) return false;
    outer->add(leaf, 0, std::move(grad));
    return true;
  }
  Backward* outer_that_waits_for(Node& leaf) const {
    for (Backward* run = outer_; run != nullptr; run = run->outer_)
      if (const auto task = run->tasks_.find(&leaf); task != run->tasks_.end() && task->second.waiting > 0) return run;
    return nullptr;
  }

  // Returns the edge at which a gradient that flows along `edge` arrives in this backward: Note [Replaced nodes].
  // REQUIRES: edge.node is not null.
  const Edge& target(const Edge& edge) const {
    return !edge.node->replaced || tasks_.contains(edge.node.get()) ? edge : edge.node->successor(edge.output);
  }

  // Called when a gradient arrives at output `output` of `node`.
  void add(Node& node, int output, Tensor grad) {
    Task& task = tasks_[&node];
    task.grads.resize(static_cast<size_t>(node.n_outputs));
    Tensor& total = task.grads[static_cast<size_t>(output)];
    if (!total.defined()) {
      total = std::move(grad);
    } else if (anomaly::detecting) [[unlikely]] {
      anomaly::Check check;
      check.operand("one", total);
      check.operand("the other", grad);
      total = total + grad;
      check.result(absl::StrCat("backward of ", node.name()), "the sum of the arriving gradients", total,
                   [&] { return node.location(); });
    } else if (may_overwrite(total) && total.dtype() == grad.dtype() && total.sizes() == grad.sizes()) {
      total.add_(grad);
    } else {
      total = total + grad;
    }
  }
  // Moves out the gradient that has arrived at `edge` so far.
  Tensor take(const Edge& edge) {
    Task& task = tasks_[edge.node.get()];
    task.grads.resize(static_cast<size_t>(edge.node->n_outputs));
    return std::move(task.grads[static_cast<size_t>(edge.output)]);
  }

  void count_dependencies() {
    absl::InlinedVector<Node*, 32> stack;
    const auto visit = [&](Node* node, Task& task) {
      if (!std::exchange(task.counted, true)) stack.push_back(node);
    };
    for (const auto& root : roots_) visit(root.get(), tasks_[root.get()]);
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      for (const Edge& edge : node->edges) {
        if (!edge.node) continue;
        Node* const below = target(edge).node.get();
        Task& task = tasks_[below];
        ++task.waiting;
        visit(below, task);
      }
    }
  }

  // Drops the gradients of outputs on which no captured gradient depends. A root may be such an output.
  void drop_unrequested(const Node* node, std::span<Tensor> grads) const {
    if (!leads_.contains(node)) return;
    for (size_t i = 0; i < grads.size(); ++i)
      if (!is_requested(node, static_cast<int>(i))) grads[i] = Tensor();
  }
  std::vector<bool> requested_edges(const Node& node) const {
    std::vector<bool> edges;
    for (const Edge& edge : node.edges) edges.push_back(is_requested(edge));
    return edges;
  }
  std::vector<int> captured_outputs(const Node* node) const {
    std::vector<int> outputs;
    if (const auto at = captures_.find(node); at != captures_.end())
      for (auto [output, index] : at->second) outputs.push_back(output);
    return outputs;
  }
  // True if the gradient of this edge, or one that is computed from it, is captured.
  bool is_requested(const Edge& edge) const {
    return edge.node != nullptr && is_requested(target(edge).node.get(), target(edge).output);
  }
  bool is_requested(const Node* node, int output) const {
    if (const auto at = captures_.find(node); at != captures_.end())
      for (auto [captured, index] : at->second)
        if (captured == output) return true;
    const auto at = leads_.find(node);
    return at == leads_.end() ? needed_.contains(node) : at->second[static_cast<size_t>(output)];
  }
  // Captures gradients of a node that runs its hooks itself: adds one more hook to each requested output.
  static constexpr int64_t kCapture = -1;
  static void watch(Node& node, std::span<const std::pair<int, size_t>> outputs, std::vector<Tensor>& captured) {
    for (auto [output, index] : outputs)
      node.extras_of(output).hooks.push_back({kCapture, [&captured, index = index](const Tensor& grad) {
                                                captured[index] = grad;
                                                return Tensor();
                                              }});
  }
  static void unwatch(Node& node, std::span<const std::pair<int, size_t>> outputs) {
    const auto is_capture = [](const Hook& hook) { return hook.id == kCapture; };
    for (Node::OutputExtras& extra : node.extras) std::erase_if(extra.hooks, is_capture);
    for (auto [output, index] : outputs) std::erase_if(node.extras_of(output).hooks, is_capture);  // if replaced
  }

  // Finds the nodes from which a captured edge can be reached. No other node runs.
  void find_needed() {
    HashSet<Node*> seen;
    std::vector<std::pair<Node*, size_t>> path;  // a node and the next edge to follow
    // One root at a time: everything below a node must be known when the search leaves the node, and one root may be
    // below another.
    for (const auto& root : roots_) {
      if (seen.insert(root.get()).second) path.push_back({root.get(), 0});
      while (!path.empty()) {
        auto& [node, next] = path.back();
        if (next == node->edges.size()) {
          const std::vector<bool> edges = requested_edges(*node);
          if (std::find(edges.begin(), edges.end(), true) != edges.end()) needed_.insert(node);
          if (std::vector<bool> leads = node->leads_to(edges, captured_outputs(node)); !leads.empty())
            leads_.try_emplace(node, std::move(leads));
          path.pop_back();
          continue;
        }
        const Edge& edge = node->edges[next++];
        if (edge.node == nullptr) continue;
        Node* const below = target(edge).node.get();
        if (seen.insert(below).second) path.push_back({below, 0});
      }
    }
  }

  bool retain_graph_;
  bool captured_ = false;  // true in a grad()
  Backward* outer_ = nullptr;
  const Node* running_ = nullptr;
  GradMode mode_;
  amp::Autocast as_recorded_{std::nullopt};  // gradients have the dtypes that the forward chose
  std::vector<std::shared_ptr<Node>> roots_;
  HashMap<Node*, Task> tasks_;
  HashMap<const Node*, std::vector<std::pair<int, size_t>>> captures_;
  HashSet<const Node*> needed_;
  HashMap<const Node*, std::vector<bool>> leads_;  // the results of Node::leads_to()
};

// Gives each root its gradient: the one in `grads`, or 1 if there is none (the root must then have one element). If the
// only root gets this 1, returns it, for KnownOne. Otherwise returns an undefined tensor.
Tensor seed_roots(Backward& run, std::span<const Tensor> roots, std::span<const Tensor> grads,
                  std::source_location where) {
  if (grads.size() > roots.size())
    throw_op_error("backward", absl::StrCat(grads.size(), " gradients are given for ", roots.size(), " tensors"),
                   where);
  Tensor one;
  for (size_t i = 0; i < roots.size(); ++i) {
    const Tensor& root = roots[i];
    if (!root.requires_grad(where))
      throw_op_error(
          "backward",
          "the tensor does not require grad: no tensor that it was computed from does, or it was computed under NoGrad",
          where);
    Tensor grad = i < grads.size() ? grads[i] : Tensor();
    if (!grad.defined()) {
      if (root.numel() != 1)
        throw_op_error("backward",
                       "the tensor has shape " + to_string(root.sizes()) +
                           ", not one element; reduce it with sum() or mean(), or pass its gradient",
                       where);
      grad = Tensor::ones(root.sizes(), {root.dtype(), root.device()});
      if (roots.size() == 1) one = grad;
    }
    if (!(grad.sizes() == root.sizes()))
      throw_op_error("backward",
                     "the gradient has shape " + to_string(grad.sizes()) + ", the tensor " + to_string(root.sizes()),
                     where);
    if (grad.dtype() != root.dtype())
      throw_op_error("backward",
                     absl::StrCat("the gradient is ", std::string(name_of(grad.dtype())), ", the tensor ",
                                  std::string(name_of(root.dtype()))),
                     where);
    if (!(grad.device() == root.device()))
      throw_op_error("backward",
                     absl::StrCat("the gradient is on ", to_string(grad.device()), ", the tensor on ",
                                  to_string(root.device()), "; move it with .to(Device)"),
                     where);
    run.seed(gradient_edge(root), apart_from_grads(std::move(grad)));
  }
  return one;
}

thread_local Node* rows_of = nullptr;
thread_local GradientParts* rows_to = nullptr;  // takes the rows if rows_of is null

}  // namespace

bool backward_returns_gradients() { return innermost != nullptr && innermost->returns_gradients(); }

bool is_awaited(const LeafGrad& to) { return to.leaf != nullptr && is_leaf_node(*to.leaf) && has_callbacks(*to.leaf); }

bool complete_leaf(const LeafGrad& to, Tensor& grad) {
  if (to.leaf == nullptr || !is_leaf_node(*to.leaf)) return false;
  innermost->complete_leaf(*to.leaf, std::move(grad));
  return true;
}

bool comes_in_parts(const LeafGrad& to) {
  return to.leaf != nullptr && is_leaf_node(*to.leaf) && parts_of(*to.leaf) != nullptr;
}

void give_part(const LeafGrad& to, Tensor& total) { innermost->give_part(*to.leaf, total); }

bool offer_rows(const LeafGrad& to, const Tensor& rows, const Tensor& indices) {
  const RowsOfLeaf scope(const_cast<Node*>(to.leaf));
  return offer_rows(rows, indices);
}

// A gradient rule may also run while it is traced or replayed. The running node is then not the node of the rule, so
// there is no home.
Tensor home_of_operand(int i) {
  const Node* const node = node_of_rule();
  if (node == nullptr || innermost == nullptr || innermost->running() != node || active_recorder() != nullptr)
    return {};
  return innermost->home_of(*node, i);
}

RowsOfLeaf::RowsOfLeaf(Node* leaf)
    : previous_(std::exchange(rows_of, leaf != nullptr && is_leaf_node(*leaf) ? leaf : nullptr)),
      previous_taker_(std::exchange(rows_to, nullptr)) {}
RowsOfLeaf::RowsOfLeaf(GradientParts& taker)
    : previous_(std::exchange(rows_of, nullptr)), previous_taker_(std::exchange(rows_to, &taker)) {}
RowsOfLeaf::~RowsOfLeaf() {
  rows_of = previous_;
  rows_to = previous_taker_;
}

bool offer_rows(const Tensor& rows, const Tensor& indices) {
  GradientParts* const parts = rows_of != nullptr ? parts_of(*rows_of) : rows_to;
  if (parts == nullptr || !parts->take_rows(rows, indices)) return false;
  if (rows_of != nullptr) innermost->note_partial_delivery(*rows_of);
  return true;
}

void backward(std::span<const Tensor> roots, std::span<const Tensor> grads, bool retain_graph, bool create_graph,
              std::source_location where) try {
  const RecordingPause pause("backward() is called", where);
  Backward run(retain_graph || create_graph, create_graph);
  const KnownOne one(seed_roots(run, roots, grads, where));
  run.run(nullptr);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("backward");
}

std::vector<Tensor> grad(std::span<const Tensor> roots, std::span<const Tensor> inputs, std::span<const Tensor> grads,
                         bool retain_graph, bool create_graph, bool allow_unused, std::source_location where) try {
  const RecordingPause pause("autograd::grad() is called", where);
  Backward run(retain_graph || create_graph, create_graph);
  const KnownOne one(seed_roots(run, roots, grads, where));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) throw_op_error("autograd::grad", absl::StrCat("input ", i, " is undefined"), where);
    if (!inputs[i].requires_grad(where))
      throw_op_error("autograd::grad", absl::StrCat("input ", i, " does not require grad"), where);
    run.capture(gradient_edge(inputs[i]), i);
  }
  std::vector<Tensor> captured(inputs.size());
  run.run(&captured);
  for (size_t i = 0; i < inputs.size() && !allow_unused; ++i)
    if (!captured[i].defined())
      throw_op_error("autograd::grad",
                     absl::StrCat("input ", i, " was not used; pass allow_unused = true if that is meant"), where);
  // Note [Gradients do not alias]
  HashSet<const void*> taken;
  for (const Tensor& seed : grads)
    if (seed.defined()) taken.insert(seed.storage().id());
  for (Tensor& gradient : captured)
    if (gradient.defined() && !taken.insert(gradient.storage().id()).second) gradient = gradient.clone();
  return captured;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("autograd::grad");
}

}  // namespace rondo::autograd
