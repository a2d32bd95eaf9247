#include "rondo/compile/capture/trace.h"

#include <algorithm>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/location.h"
#include "rondo/runtime/base/per_thread.h"
#include "rondo/runtime/ops/channels_last.h"

namespace rondo::compile {

Trace::Trace() {
  Spare* const memory = PerThread<Spare>::get();
  if (memory == nullptr) return;
  graph = std::move(memory->graph);
  handles_ = std::move(memory->handles);
  external_ = std::move(memory->external);
  external_ids_ = std::move(memory->external_ids);
}

Trace::~Trace() {
  abandon();
  // Does not keep the memory of a whole model's recording, nor of a graph that was moved away.
  constexpr size_t kMaxKept = 1024;
  Spare* const memory = PerThread<Spare>::get();
  if (memory == nullptr) return;
  if (graph.values.capacity() > kMaxKept || graph.nodes.capacity() == 0) return;
  memory->graph = std::move(graph);
  memory->handles = std::move(handles_);
  memory->external = std::move(external_);
  memory->external_ids = std::move(external_ids_);
}

ValueId Trace::add_value(Tensor handle, int32_t producer) {
  const auto id = static_cast<ValueId>(graph.values.size());
  const TensorImpl& impl = *handle.impl();
  Value& value = graph.values.emplace_back();
  value.dtype = impl.dtype;
  value.sizes = impl.sizes;
  value.strides = impl.strides;
  value.requires_grad = handle.requires_grad();
  value.grad_mode = grad_enabled();
  value.producer = producer;
  value.root = id;
  handles_.emplace_back(std::move(handle));
  return id;
}

Tensor Trace::placeholder(const Value& like) {
  auto* impl = new TensorImpl;
  impl->dtype = like.dtype;
  impl->device = device;
  impl->sizes = like.sizes;
  impl->strides = like.strides;
  impl->requires_grad = like.requires_grad;
  impl->recorder = this;
  impl->recorded_value = static_cast<int32_t>(graph.values.size());
  Tensor tensor(impl);
  graph.inputs.push_back(add_value(tensor, -1));
  graph.values.back().leaf = like.leaf;
  graph.values.back().overwritten = like.overwritten;
  return tensor;
}

ValueId Trace::value_of(const Tensor& tensor, std::source_location where) {
  TensorImpl* impl = tensor.impl();
  if (impl->recorder == this) return impl->recorded_value;
  // A value of another recording (an outer region) must be computed before it can be an input of this one.
  if (impl->recorder != nullptr || !impl->storage) static_cast<void>(tensor.storage(where));
  auto [found, added] = external_ids_.try_emplace(impl, 0);
  if (added) {
    found->second = add_value(tensor, -1);
    graph.values.back().leaf = tensor.requires_grad() && tensor.is_leaf();
    graph.inputs.push_back(found->second);
    external_.push_back(tensor);
  }
  return found->second;
}

std::source_location Trace::user_of(std::source_location where) {
  if (where.file_name() == user_file_) return where;  // most ops of a block are called in one file
  const std::source_location user = user_location(where);
  if (ModuleFrame::innermost() != nullptr && user.file_name() == where.file_name()) user_file_ = where.file_name();
  return user;
}

void Trace::record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                   std::span<Tensor> outputs, bool in_place, std::source_location where) {
  if (in_place || op.kind != OpKind::kElementwise || !lies_channels_last(outputs[0]))
    return append(op, inputs, attrs, outputs, in_place, where);
  absl::InlinedVector<TensorArg, kUsualInputs> args;
  for (const Tensor* input : inputs) args.emplace_back(*input, where);
  call_channels_last(op, args, attrs, outputs);
}

void Trace::append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                   std::span<Tensor> outputs, bool in_place, std::source_location where) {
  invariant(!in_place, "an in-place op reached a trace");
  ValueIds operands;
  for (const Tensor* input : inputs) operands.push_back(input->defined() ? value_of(*input, where) : kNoValue);
  const auto index = static_cast<int32_t>(graph.nodes.size());  // value_of() may have added nodes
  GraphNode& node = graph.nodes.emplace_back();
  node.op = &op;
  node.inputs = std::move(operands);
  node.attrs = attrs;
  node.where = where;
  node.origin = origin != nullptr ? *origin : Origin{.op = &op, .where = where, .user = user_of(where)};
  if (node.origin.call < 0) node.origin.call = first_call + index;
  for (Tensor& output : outputs) {
    output.impl()->recorder = this;
    output.impl()->recorded_value = static_cast<int32_t>(graph.values.size());
    const ValueId id = add_value(output, index);
    if (op.kind == OpKind::kView) {
      const Value& source = graph.value(node.inputs[0]);
      graph.value(id).root = source.root;
      graph.value(id).offset = source.offset + output.impl()->offset - inputs[0]->impl()->offset;
    }
    node.outputs.push_back(id);
  }
}

void Trace::history_changed(const Tensor& input) {
  const auto found = external_ids_.find(input.impl());
  if (found == external_ids_.end()) return;
  Value& value = graph.value(found->second);
  value.requires_grad = input.requires_grad();
  value.leaf = value.requires_grad && input.is_leaf();
}

bool Trace::reads(const Storage& storage) const {
  return std::any_of(external_.begin(), external_.end(),
                     [&](const Tensor& tensor) { return tensor.impl()->storage == storage; });
}

Trace::Tail Trace::cut(int32_t last) {
  Tail tail;
  const auto begin = graph.nodes.begin() + last + 1;
  tail.nodes.assign(begin, graph.nodes.end());
  graph.nodes.erase(begin, graph.nodes.end());
  tail.values = graph.values;
  tail.handles = needed(tail.nodes, handles_);
  return tail;
}

std::vector<Tensor> Trace::needed(std::span<const GraphNode> nodes, const std::vector<Tensor>& handles) {
  std::vector<Tensor> kept(handles.size());
  for (const GraphNode& node : nodes)
    for (const ValueIds* list : {&node.inputs, &node.outputs})
      for (ValueId id : *list)
        if (id != kNoValue) kept[static_cast<size_t>(id)] = handles[static_cast<size_t>(id)];
  return kept;
}

void Trace::resume(Tail& tail, size_t n) {
  const auto end = tail.nodes.begin() + static_cast<std::ptrdiff_t>(n);
  for (GraphNode node : std::span(tail.nodes.begin(), end)) {
    const auto index = static_cast<int32_t>(graph.nodes.size());
    const ValueId viewed = node.inputs.empty() ? kNoValue : node.inputs[0];
    for (ValueId& id : node.inputs)
      if (id != kNoValue) id = value_of(tail.handles[static_cast<size_t>(id)]);
    for (ValueId& id : node.outputs) {
      const Value& before = tail.values[static_cast<size_t>(id)];
      const Tensor& output = tail.handles[static_cast<size_t>(id)];
      output.impl()->recorder = this;
      output.impl()->recorded_value = static_cast<int32_t>(graph.values.size());
      id = add_value(output, index);
      graph.value(id).grad_mode = before.grad_mode;
      if (node.op->kind != OpKind::kView) continue;
      const Value& source = graph.value(node.inputs[0]);
      graph.value(id).root = source.root;
      graph.value(id).offset = source.offset + before.offset - tail.values[static_cast<size_t>(viewed)].offset;
    }
    graph.nodes.push_back(std::move(node));
  }
  tail.nodes.erase(tail.nodes.begin(), end);
  tail.handles = needed(tail.nodes, tail.handles);  // releases the handles of other values
}

void Trace::flush(const TensorImpl&, std::source_location where) {
  throw_internal("an op rule read the data of a symbolic tensor", where);
}

void Trace::abandon() {
  for (Tensor& handle : handles_)
    if (handle.defined() && handle.impl()->recorder == this) handle.impl()->recorder = nullptr;
  handles_.clear();
  external_.clear();
  external_ids_.clear();
  graph.versions.clear();
  graph.values.clear();
  graph.nodes.clear();
  graph.inputs.clear();
  graph.outputs.clear();
}

}  // namespace rondo::compile
