#include "rondo/runtime/autograd/node.h"

#include <type_traits>

#include "rondo/runtime/autograd/node_scope.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {
namespace {

thread_local bool grad_mode = true;

// Freeing a deep tape must not recurse: nodes queue up here and are freed one by one.
thread_local absl::InlinedVector<std::shared_ptr<Node>, 8>* dying = nullptr;

}  // namespace

bool grad_enabled() { return grad_mode; }
GradMode::GradMode(bool on) : previous_(std::exchange(grad_mode, on)) {}
GradMode::~GradMode() { grad_mode = previous_; }

namespace {
std::atomic<uint64_t> next{0};
uint64_t take_sequence() { return next.fetch_add(1, std::memory_order_relaxed); }

// Runs the recorded ops first, so that their node is older than the new node: gradients are then added in the order of
// eager execution.
uint64_t sequence_of_new_node(std::source_location where) {
  if (Recorder* const recorder = active_recorder()) [[unlikely]]
    recorder->interrupt("a tape node is made", where);
  const Node* const replaced = autograd::ReplacementScope::now();
  return replaced != nullptr ? replaced->sequence : take_sequence();
}
}  // namespace

Node::Node(std::source_location where)
    : sequence(sequence_of_new_node(where)),
      within(autograd::ReplacementScope::now() != nullptr ? take_sequence() : 0) {}
Node::Node(AsRecordingGoesOn) : sequence(take_sequence()) {}

Node::~Node() {
  std::remove_pointer_t<decltype(dying)> queue;
  const bool outermost = dying == nullptr;
  if (outermost) dying = &queue;
  try {
    for (Edge& edge : edges)
      if (edge.node && edge.node.use_count() == 1) dying->push_back(std::move(edge.node));
  } catch (const std::bad_alloc&) {  // no memory for the queue: the remaining nodes are freed recursively
  }
  while (outermost && !queue.empty()) {
    std::shared_ptr<Node> node = std::move(queue.back());
    queue.pop_back();
  }
  if (outermost) dying = nullptr;
}

Tensor LeafGrad::grad() const { return leaf == nullptr ? Tensor() : leaf->leaf_grad(); }

const Edge& Node::successor(int) const { throw_internal("a node without successors is replaced", {}); }

Node::OutputExtras& Node::extras_of(int output) {
  if (replaced) {
    const Edge& to = successor(output);
    return to.node->extras_of(to.output);
  }
  for (OutputExtras& e : extras)
    if (e.output == output) return e;
  return extras.emplace_back(OutputExtras{output, {}, {}});
}

}  // namespace rondo
