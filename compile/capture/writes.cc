// Note [Writes]. A recorded call never overwrites: a write in place becomes a call whose result is the next version of
// the memory. A write through a view makes a copy of the whole with the view's part replaced. What reads the memory
// later reads the present version, through the same views as before. So the compiler sees values only, and may reorder,
// fuse and drop as ever.
//
// A recording writes memory of its own, or of a tensor outside of it. The last version of the latter is an output, and
// the caller of the program finds it in the tensor's memory afterwards (Graph::versions, region/write_back.h). The plan
// makes it there, if the order of reads allows that.
//
// Nothing is guessed: two tensors outside of the recording that share memory are told apart only if one lies in the
// other. Otherwise, and where the write changes what gradients flow to, the write is a graph break.
#include <algorithm>

#include "rondo/compile/capture/trace.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/ops/window.h"

namespace rondo::compile {
namespace {

bool dense(const TensorImpl& impl) { return is_contiguous(impl.sizes, impl.strides); }

// The tensor that holds everything a write to `target` may reach.
const Tensor& base_of(const Tensor& target) {
  const AutogradMeta* meta = target.impl()->autograd.get();
  return meta != nullptr && meta->base.defined() ? meta->base : target;
}

}  // namespace

Trace::Memory* Trace::memory_of(ValueId root) {
  const auto at = static_cast<size_t>(root);
  return at < memory_at_.size() && memory_at_[at] >= 0 ? &memories_[static_cast<size_t>(memory_at_[at])] : nullptr;
}
const Trace::Memory* Trace::memory_of(const Storage& storage) const {
  for (const Memory& memory : memories_)
    if (memory.storage && memory.storage == storage) return &memory;
  return nullptr;
}
bool Trace::writes(const Storage& storage) const { return memory_of(storage) != nullptr; }

const Tensor* Trace::written_tensor(ValueId id) const {
  const auto at = static_cast<size_t>(id);
  if (at >= memory_at_.size() || memory_at_[at] < 0) return nullptr;
  const Memory& memory = memories_[static_cast<size_t>(memory_at_[at])];
  return memory.storage ? &memory.tensor : nullptr;
}

bool Trace::can_read(const Tensor& tensor) const {
  const TensorImpl& impl = *tensor.impl();
  if (impl.recorder != nullptr || !impl.storage) return true;
  const Memory* memory = memory_of(impl.storage);
  if (memory == nullptr || &impl == memory->tensor.impl()) return true;
  return impl.dtype == memory->tensor.dtype() && !tensor.requires_grad() &&
         ops::Window::of(tensor, memory->tensor).fits_in(memory->tensor.numel());
}

bool Trace::may_begin_to_write(const Tensor& base, bool differentiable) const {
  const TensorImpl& impl = *base.impl();
  // Two tensors of one memory, of which neither is known to lie in the other, were or will be read.
  const auto shares = [&](const Tensor& other) {
    return other.impl() != base.impl() && other.impl()->storage == impl.storage;
  };
  return dense(impl) && !differentiable && !base.requires_grad() &&
         std::none_of(external_.begin(), external_.end(), shares);
}

Trace::Memory* Trace::memory_to_write(const Tensor& target, bool differentiable) {
  const TensorImpl& impl = *target.impl();
  Memory made;
  if (impl.recorder == this) {
    const ValueId root = graph.value(impl.recorded_value).root;
    if (Memory* known = memory_of(root)) return known;
    if (graph.value(root).producer < 0) {
      made.tensor = handle(root);
    } else {
      const Value& value = graph.value(root);
      if (differentiable || value.requires_grad || !is_contiguous(value.sizes, value.strides)) return nullptr;
      made.first = root;
    }
  } else {
    if (const Memory* known = memory_of(impl.storage)) return const_cast<Memory*>(known);
    made.tensor = base_of(target);
  }
  if (made.tensor.defined()) {
    if (!may_begin_to_write(made.tensor, differentiable)) return nullptr;
    made.first = value_of(made.tensor);
    made.storage = made.tensor.impl()->storage;
    made.input = static_cast<int32_t>(std::find(graph.inputs.begin(), graph.inputs.end(), made.first) -
                                      graph.inputs.begin());
    writing_recordings += !std::exchange(counts_as_writing_, true);
  }
  made.current = made.first;
  memory_at_.resize(std::max(memory_at_.size(), static_cast<size_t>(made.first) + 1), -1);
  memory_at_[static_cast<size_t>(made.first)] = static_cast<int32_t>(memories_.size());
  return &memories_.emplace_back(std::move(made));
}

bool Trace::record_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& next,
                         std::source_location where) {
  const Tensor& target = *inputs[0];
  const TensorImpl& impl = *target.impl();
  const bool differentiable = next.impl()->requires_grad;
  const bool recorded = impl.recorder == this;
  if ((impl.recorder != nullptr && !recorded) || (!recorded && !impl.storage)) return false;
  if (op.kind == OpKind::kView || op.checks || autograd::overlaps_itself(target) || !dense(*next.impl())) return false;
  // Eager execution says what is wrong with the rest.
  if (autograd::is_no_grad_view(target) && grad_enabled()) return false;
  if (!recorded) autograd::check_in_place(op, target, differentiable, where);
  for (const Tensor* input : inputs)
    if (input->defined() && !can_read(*input)) return false;
  Memory* const found = memory_to_write(target, differentiable);
  if (found == nullptr) return false;
  const auto at = static_cast<size_t>(found - memories_.data());  // records below may add memories
  if (graph.value(memories_[at].current).requires_grad || differentiable) return false;
  for (const Tensor* input : inputs)
    if (input->defined() && !can_read(*input)) return false;

  const ValueId before = value_of(target, where);
  const Value shown = graph.value(before);
  const ValueId whole = memories_[at].current;
  graph.value(whole).overwritten = true;
  Tensor outputs[] = {next};
  Trace::record(op, inputs, attrs, outputs, false, where);
  graph.nodes.back().in_place = true;
  const ValueId written = graph.nodes.back().outputs[0];
  const Value& base = graph.value(whole);
  const bool is_whole = shown.offset == 0 && shown.sizes.numel() == base.sizes.numel() && shown.sizes == base.sizes &&
                        shown.strides == base.strides;
  if (is_whole) {
    advance(memories_[at], written);
    return true;
  }
  const Tensor parts[] = {own_handle(whole), next};
  const Tensor* const operands[] = {&parts[0], &parts[1]};
  Tensor copies[] = {own_handle(whole)};
  copies[0].impl()->recorder = nullptr;
  Trace::record(ops::kOverwrite, operands, ops::Window{shown.offset, shown.sizes, shown.strides}.for_write(), copies,
                false, where);
  graph.nodes.back().in_place = true;
  advance(memories_[at], graph.nodes.back().outputs[0]);
  return true;
}

void Trace::advance(Memory& memory, ValueId next) {
  const ValueId before = std::exchange(memory.current, next);
  memory_at_.resize(std::max(memory_at_.size(), static_cast<size_t>(next) + 1), -1);
  memory_at_[static_cast<size_t>(next)] = static_cast<int32_t>(&memory - memories_.data());
  if (memory.storage) {
    graph.versions.push_back({next, memory.input});
    return;
  }
  // The user's handle of the memory stands for its new value.
  Tensor user = handles_[static_cast<size_t>(before)];
  handles_[static_cast<size_t>(before)] = own_handle(before);
  user.impl()->recorded_value = next;
  handles_[static_cast<size_t>(next)] = std::move(user);
}

Tensor Trace::own_handle(ValueId id) const {
  const Value& value = graph.value(id);
  auto* impl = new TensorImpl;
  impl->dtype = value.dtype;
  impl->device = handle(id).impl()->device;
  impl->sizes = value.sizes;
  impl->strides = value.strides;
  impl->offset = value.offset;
  impl->requires_grad = value.requires_grad;
  impl->recorder = const_cast<Trace*>(this);
  impl->recorded_value = id;
  return Tensor(impl);
}

ValueId Trace::renewed(ValueId id) {
  const ValueId root = graph.value(id).root;
  const Memory* memory = memory_of(root);
  if (memory == nullptr || memory->current == root) return id;
  return id == root ? memory->current : show_again(id, memory->current);
}

// The views between the root and `view`, on another root.
ValueId Trace::show_again(ValueId view, ValueId root) {
  if (graph.value(view).root == view) return root;
  const auto maker = static_cast<size_t>(graph.value(view).producer);
  const ValueId source = show_again(graph.nodes[maker].inputs[0], root);
  GraphNode node = graph.nodes[maker];
  node.in_place = false;
  node.inputs[0] = source;
  const auto index = static_cast<int32_t>(graph.nodes.size());
  node.origin.call = first_call + index;
  ValueId shown = kNoValue;
  for (ValueId& output : node.outputs) {
    const ValueId before = output;
    Tensor twin = own_handle(before);
    twin.impl()->requires_grad = false;
    output = twin.impl()->recorded_value = add_value(twin, index);
    Value& value = graph.value(output);
    value.grad_mode = graph.value(before).grad_mode;
    value.root = root;
    value.offset = graph.value(before).offset;
    if (before == view) shown = output;
  }
  graph.nodes.push_back(std::move(node));
  return shown;
}

ValueId Trace::renew(TensorImpl& impl) {
  const ValueId before = impl.recorded_value, now = renewed(before);
  if (now == before) return now;
  Tensor& known = handles_[static_cast<size_t>(before)];
  if (known.impl() != &impl) return now;  // a handle of the recording's own
  Tensor user = std::exchange(known, own_handle(before));
  impl.recorded_value = now;
  handles_[static_cast<size_t>(now)] = std::move(user);
  return now;
}

ValueId Trace::read_of_written(const Tensor& outside) {
  Memory& memory = *const_cast<Memory*>(memory_of(outside.impl()->storage));
  if (memory.tensor.is_same(outside)) return memory.current;
  invariant(can_read(outside), "a recording reads memory that it writes, in an unknown place");
  const auto [found, added] = external_ids_.try_emplace(outside.impl(), kNoValue);
  if (!added) return external_ids_[outside.impl()] = renewed(found->second);
  memory.others.push_back(outside);
  const ops::Window window = ops::Window::of(outside, memory.tensor);
  const Tensor whole = own_handle(memory.current);
  const Tensor* const operands[] = {&whole};
  Tensor view[] = {own_handle(memory.current)};
  TensorImpl& impl = *view[0].impl();
  impl.sizes = window.sizes;
  impl.strides = window.strides;
  impl.offset = window.offset;
  Trace::record(ops::kStridedView, operands, window.for_view(), view, false, std::source_location());
  return external_ids_[outside.impl()] = graph.nodes.back().outputs[0];
}

void Trace::refresh() {
  if (memories_.empty()) return;
  for (size_t id = 0, n = handles_.size(); id < n; ++id) {
    if (!is_alive(static_cast<ValueId>(id))) continue;
    TensorImpl& impl = *handles_[id].impl();
    if (impl.recorder == this) renew(impl);
  }
  for (Memory& memory : memories_)
    if (memory.storage && memory.current != memory.first) handles_[static_cast<size_t>(memory.current)] = memory.tensor;
}

}  // namespace rondo::compile
