#include "rondo/compile/region/kept_values.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/autograd/node_scope.h"

namespace rondo::compile {
namespace {

[[noreturn]] void throw_freed(const GraphNode& node) {
  throw Error(absl::StrCat("backward of ", node.op->name,
                           ": its saved tensors were freed by an earlier backward; pass retain_graph = true to that "
                           "one",
                           describe_location(node.where)));
}

}  // namespace

KeptValues::KeptValues(const Entry& entry, std::span<const Tensor> inputs, std::span<const Tensor> results)
    : entry_(entry) {
  auto saved = std::make_shared<Tensors>();
  saved->inputs.reserve(inputs.size());
  const std::vector<int>& with_gradient = entry_.backward().grad_inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    // An input that gets no gradient is saved without its history, because gradient_edge() of such an input may throw.
    const bool no_history = input.requires_grad() && std::find(with_gradient.begin(), with_gradient.end(),
                                                               static_cast<int>(i)) == with_gradient.end();
    if (entry_.recording().value(entry_.recording().inputs[i]).overwritten) saved->inputs.emplace_back();
    else saved->inputs.emplace_back(no_history ? input.detach() : input, false);
  }
  saved->values.reserve(entry_.partition()->kept().size());
  for (const Partition::Kept& kept : entry_.partition()->kept())
    if (!kept.is_input) saved->values.emplace_back(results[static_cast<size_t>(kept.index)], false);
    else saved->values.emplace_back();
  saved_ = std::move(saved);
  const Graph& graph = entry_.recording();
  differentiable_.reserve(graph.outputs.size());
  for (ValueId id : graph.outputs) differentiable_.push_back(graph.value(id).requires_grad);
  if (std::count(differentiable_.begin(), differentiable_.end(), true) > 1) ports_.resize(graph.outputs.size());
}

std::shared_ptr<void> KeptValues::port(int output, std::shared_ptr<Node> node) {
  if (ports_.empty()) return nullptr;
  std::lock_guard lock(mutex_);
  std::weak_ptr<Port>& port = ports_[static_cast<size_t>(output)];
  std::shared_ptr<Port> owner = port.lock();
  if (owner == nullptr) port = owner = std::make_shared<Port>(Port{std::move(node)});
  return owner;
}

KeptValues::Pass KeptValues::begin(const std::vector<bool>& outputs) {
  std::lock_guard lock(mutex_);
  const autograd::RequestedGradients* requested = autograd::RequestedGradients::now();
  Pass pass;
  pass.saved = saved_;
  const bool any_freed = all_freed_ || !freed_.empty();
  pass.freed = all_freed_ ? OpSet(entry_.recording().nodes.size(), true) : freed_;
  bool all = requested == nullptr;
  for (size_t i = 0; i < outputs.size(); ++i) all = all && (outputs[i] || !is_in_use(i));
  if (!all || any_freed)
    pass.ops = requested == nullptr ? ops_passed(entry_.recording(), outputs)
                                    : ops_passed(entry_.recording(), outputs, &requested->edges, requested->outputs);
  if (any_freed) {
    const OpSet saving = ops_that_save(entry_.recording());
    for (size_t n = pass.ops->size(); n-- > 0;) {
      if (!(*pass.ops)[n] || !saving[n] || !(all_freed_ || freed_[n])) continue;
      if (autograd::LastRead::now())
        for (size_t before = n + 1; before < freed_.size(); ++before)
          freed_[before] = freed_[before] || (*pass.ops)[before];
      throw_freed(entry_.recording().nodes[n]);
    }
  }
  pass.is_last = !pass.ops || !leaves_any(freed_and(*pass.ops));
  return pass;
}

void KeptValues::free(const Pass& pass) {
  std::lock_guard lock(mutex_);
  if (pass.ops) freed_ = freed_and(*pass.ops);
  if (all_freed_ || (pass.ops && leaves_any(freed_))) return;
  auto nothing = std::make_shared<Tensors>();
  nothing->inputs.resize(saved_->inputs.size());
  nothing->values.resize(saved_->values.size());
  saved_ = std::move(nothing);
  all_freed_ = true;
}

void KeptValues::release(Pass& pass) {
  free(pass);
  pass.released = true;
  pass.saved = nullptr;
}

// True if a gradient may still arrive at this output.
bool KeptValues::is_in_use(size_t output) const {
  return differentiable_[output] && (ports_.empty() || !ports_[output].expired());
}

OpSet KeptValues::freed_and(OpSet ops) const {
  for (size_t n = 0; n < freed_.size(); ++n) ops[n] = ops[n] || freed_[n];
  return ops;
}

// True if an output in use leads to an op that saves something and is not in `freed`.
bool KeptValues::leaves_any(const OpSet& freed) const {
  std::vector<bool> in_use;
  for (size_t i = 0; i < differentiable_.size(); ++i) in_use.push_back(is_in_use(i));
  const OpSet useful = ops_passed(entry_.recording(), in_use), saving = ops_that_save(entry_.recording());
  for (size_t n = 0; n < useful.size(); ++n)
    if (useful[n] && saving[n] && !freed[n]) return true;
  return false;
}

}  // namespace rondo::compile
