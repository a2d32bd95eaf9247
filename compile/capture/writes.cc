// Note [Writes]. A recorded call never overwrites: a write in place becomes a call whose result is the next version of
// the memory. A write through a view makes a copy of the whole with the view's part replaced. Later calls that read the
// memory read its current version, through the same views as before. So the compiler sees only values, and may reorder,
// fuse and drop calls as usual.
//
// A recording writes memory of its own, or that of a tensor outside of it. The last version of an outside tensor is an
// output, and after the run it is in the tensor's memory (Graph::versions, region/write_back.h). If the order of reads
// allows it, the plan computes this version directly in that memory.
//
// Nothing is guessed: if two tensors outside of the recording share memory, and neither is known to lie in the other, a
// write to them is a graph break. Some writes that give memory another history are graph breaks, too. The list of all
// reasons follows.
#include "rondo/compile/capture/writes.h"

#include <utility>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/ops/window.h"

namespace rondo::compile {
namespace {

bool dense(const TensorImpl& impl) { return is_contiguous(impl.sizes, impl.strides); }

// Each text is a reason why a write is a graph break.
constexpr const char* kNotDense = "the tensor that holds the memory is not dense";
constexpr const char* kHeld = "somebody holds another tensor of the memory, and would not see that it gets a history";
constexpr const char* kHasHistory = "the tensor comes from outside and has a history";
constexpr const char* kUnknownPlace = "two tensors share memory, and neither is known to lie in the other";
constexpr const char* kOtherRegion = "another region has yet to compute the tensor";
constexpr const char* kNotRecorded = "the op is not recorded in place";
constexpr const char* kOverlapsItself = "the tensor overlaps itself";
constexpr const char* kNoGradView = "the tensor is a view that was made under no_grad";
constexpr const char* kSecondHandle = "a second handle of the memory would get a history of its own";
constexpr const char* kUnreadableView = "somebody holds a view that could not be read after it";
constexpr const char* kOldHistory =
    "the tensor keeps its history, and hooks would see the gradients of earlier versions";

// Returns the tensor that contains all memory that a write to `target` may change: the base of a view, else `target`.
const Tensor& base_of(const Tensor& target) {
  const AutogradMeta* meta = target.impl()->autograd.get();
  return meta != nullptr && meta->base.defined() ? meta->base : target;
}

}  // namespace

WritingTrace::~WritingTrace() { abandon(); }

void WritingTrace::abandon() {
  writing_recordings -= std::exchange(counts_as_writing_, false);
  memories_.clear();
  memory_at_.clear();
  stale_views_.clear();
  Trace::abandon();
}

ValueId WritingTrace::value_of(const Tensor& tensor, std::source_location where) {
  if (memories_.empty()) return Trace::value_of(tensor, where);
  TensorImpl* impl = tensor.impl();
  if (impl->recorder == this) return renew(*impl);
  // A value of another recording (an outer region) must be computed before it can be an input of this one.
  if (impl->recorder != nullptr || !impl->storage) static_cast<void>(tensor.storage(where));
  return writes(impl->storage) ? read_of_written(tensor) : Trace::value_of(tensor, where);
}

const WritingTrace::Memory* WritingTrace::memory_of(ValueId root) const {
  const auto at = static_cast<size_t>(root);
  return at < memory_at_.size() && memory_at_[at] >= 0 ? &memories_[static_cast<size_t>(memory_at_[at])] : nullptr;
}
WritingTrace::Memory* WritingTrace::memory_of(ValueId root) {
  return const_cast<Memory*>(std::as_const(*this).memory_of(root));
}
const WritingTrace::Memory* WritingTrace::memory_of(const Storage& storage) const {
  for (const Memory& memory : memories_)
    if (memory.tensor.defined() && memory.tensor.impl()->storage == storage) return &memory;
  return nullptr;
}

void WritingTrace::reserve_memory(ValueId current) {
  memories_.reserve(memories_.size() + 1);
  memory_at_.resize(std::max(memory_at_.size(), static_cast<size_t>(current) + 1), -1);
}

WritingTrace::Memory& WritingTrace::add_memory(Memory memory) {
  reserve_memory(memory.current);
  const auto at = static_cast<int32_t>(memories_.size());
  memory_at_[static_cast<size_t>(memory.first)] = memory_at_[static_cast<size_t>(memory.current)] = at;
  if (memory.tensor.defined()) writing_recordings += !std::exchange(counts_as_writing_, true);
  return memories_.emplace_back(std::move(memory));
}

const Tensor* WritingTrace::written_tensor(ValueId id) const {
  const Memory* memory = memory_of(id);
  return memory != nullptr && memory->tensor.defined() ? &memory->tensor : nullptr;
}
bool WritingTrace::keeps_history(ValueId id) const {
  const Memory* memory = memory_of(id);
  return memory != nullptr && memory->tensor.defined() && !memory->recorded;
}

const Tensor* WritingTrace::outside_view(ValueId id) const {
  if (!has_writes()) return nullptr;
  const Value& value = recorded().value(id);
  const Memory* memory = memory_of(value.root);
  if (memory == nullptr || value.root == id || value.grad_mode) return nullptr;
  const auto found = std::find_if(memory->others.begin(), memory->others.end(), [&](const Tensor& other) {
    const ops::Window window = ops::Window::of(other, memory->tensor);
    return window.offset == value.offset && window.sizes == value.sizes && window.strides == value.strides;
  });
  return found != memory->others.end() ? &*found : nullptr;
}

bool WritingTrace::can_read(const Tensor& tensor) const {
  const TensorImpl& impl = *tensor.impl();
  if (impl.recorder != nullptr || !impl.storage) return true;
  const Memory* memory = memory_of(impl.storage);
  if (memory == nullptr || &impl == memory->tensor.impl()) return true;
  return impl.dtype == memory->tensor.dtype() && !tensor.requires_grad() && !memory->tensor.requires_grad() &&
         ops::Window::of(tensor, memory->tensor).fits_in(memory->tensor.numel());
}

bool WritingTrace::can_read_all(std::span<const Tensor* const> inputs) const {
  return std::all_of(inputs.begin(), inputs.end(),
                     [&](const Tensor* input) { return !input->defined() || can_read(*input); });
}

const char* WritingTrace::first_write_break_reason(const Tensor& base, bool differentiable) const {
  const TensorImpl& impl = *base.impl();
  // True if `other`, which the recording reads, shares memory with `base`, and neither is known to lie in the other.
  const auto shares = [&](const Tensor& other) {
    return other.impl() != base.impl() && other.impl()->storage == impl.storage;
  };
  if (!dense(impl)) return kNotDense;
  if (differentiable && !impl.storage.is_unique()) return kHeld;
  if (base.requires_grad() && grad_enabled()) return kHasHistory;
  return std::any_of(external_.begin(), external_.end(), shares) ? kUnknownPlace : nullptr;
}

const char* WritingTrace::later_write_break_reason(const Memory& memory, bool differentiable) const {
  if (!memory.tensor.defined() || memory.recorded) return nullptr;
  if (memory.tensor.requires_grad() && grad_enabled()) return kHasHistory;
  return differentiable && !memory.tensor.impl()->storage.is_unique() ? kHeld : nullptr;
}

WritingTrace::Memory* WritingTrace::memory_to_write(const Tensor& target, bool differentiable, const char*& why) {
  const auto unless = [&](const char* reason, Memory* known) { return (why = reason) != nullptr ? nullptr : known; };
  const TensorImpl& impl = *target.impl();
  Memory made;
  if (impl.recorder == this) {
    const ValueId root = graph.value(impl.recorded_value).root;
    if (Memory* known = memory_of(root)) return unless(later_write_break_reason(*known, differentiable), known);
    if (graph.value(root).producer < 0) {
      made.tensor = handle(root);
    } else {
      const Value& value = graph.value(root);
      if (!is_contiguous(value.sizes, value.strides)) return unless(kNotDense, nullptr);
      made.first = root;
    }
  } else {
    if (const Memory* known = memory_of(impl.storage))
      return unless(later_write_break_reason(*known, differentiable), const_cast<Memory*>(known));
    made.tensor = base_of(target);
  }
  if (made.tensor.defined()) {
    if (const char* reason = first_write_break_reason(made.tensor, differentiable)) return unless(reason, nullptr);
    made.first = value_of(made.tensor);
    made.input = static_cast<int32_t>(std::find(graph.inputs.begin(), graph.inputs.end(), made.first) -
                                      graph.inputs.begin());
  }
  made.current = made.first;
  return &add_memory(std::move(made));
}

// True if a value has the history of its memory. False for a value behind a detach(), or made under no_grad.
bool WritingTrace::follows_history(ValueId id) const {
  for (; graph.value(id).root != id; id = graph.node(graph.value(id).producer).inputs[0])
    if (!graph.value(id).grad_mode) return false;
  return true;
}

// A write cannot be recorded if eager execution refuses it, or if its effect cannot be expressed as a new value. Then
// the caller runs the write by itself, outside of the recording.
const char* WritingTrace::write_break_reason(const Tensor& target, bool differentiable, std::source_location where,
                                             std::span<const Tensor* const> inputs, const OpDef& op) const {
  const TensorImpl& impl = *target.impl();
  const bool recorded = impl.recorder == this;
  if ((impl.recorder != nullptr && !recorded) || (!recorded && !impl.storage)) return kOtherRegion;
  if (op.kind == OpKind::kView || op.has_effects()) return kNotRecorded;
  if (autograd::overlaps_itself(target)) return kOverlapsItself;
  if (autograd::is_no_grad_view(target) && grad_enabled()) return kNoGradView;
  // A second handle of the memory, which is no view of the first, would get a history of its own.
  if (recorded && differentiable && !follows_history(impl.recorded_value)) return kSecondHandle;
  if (!recorded && !writes(impl.storage)) autograd::check_in_place(op, target, differentiable, where);
  return can_read_all(inputs) ? nullptr : kUnknownPlace;
}

const char* WritingTrace::record_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                       Tensor& next, std::source_location where) {
  const Tensor& target = *inputs[0];
  const bool differentiable = next.impl()->requires_grad;
  const char* why = dense(*next.impl()) ? write_break_reason(target, differentiable, where, inputs, op) : kNotDense;
  if (why != nullptr) return why;
  Memory* const found = memory_to_write(target, differentiable, why);
  if (found == nullptr) return why;
  const auto at = static_cast<size_t>(found - memories_.data());  // the calls below may add to memories_, and move it
  const bool has_history = differentiable || graph.value(memories_[at].current).requires_grad;
  if (has_history && has_unreadable_view(memories_[at])) return kUnreadableView;
  // If a recorded value kept its history through a write without gradients, all of its versions would have one history,
  // and its hooks would also see the gradients of the earlier versions.
  const bool is_outside = memories_[at].tensor.defined() && !memories_[at].recorded;
  if (has_history && !differentiable && !is_outside) return kOldHistory;
  if (!can_read_all(inputs)) return kUnknownPlace;

  if (differentiable && memories_[at].tensor.defined()) adopt(memories_[at]);
  const ValueId target_value = value_of(target, where), whole = memories_[at].current;
  const Value shown = graph.value(target_value);
  std::vector<Tensor> apart(inputs.size());
  if (differentiable) apart = operands_apart(op, inputs, memories_[at], where);
  std::vector<const Tensor*> operands;
  for (size_t i = 0; i < inputs.size(); ++i) operands.push_back(apart[i].defined() ? &apart[i] : inputs[i]);
  graph.value(whole).overwritten = true;
  const Value& base = graph.value(whole);
  // On the eager tape, the gradient of a write through a view is added to zeros of the base's size, even if the view
  // shows all of the base. So -0 becomes 0. To get the same bits, such a view does not count as the whole.
  const bool is_whole = shown.offset == 0 && shown.sizes == base.sizes && shown.strides == base.strides &&
                        (!differentiable || shown.root == target_value);
  ValueId written = kNoValue;
  if (!is_whole) written = record_placed(op, operands, attrs, whole, shown, differentiable, where);
  if (written == kNoValue) {
    written = record_version(op, operands, attrs, next, where);
    if (!is_whole) {
      const Tensor* const part[] = {nullptr, &next};
      written = record_overwrite(whole, shown, part, {}, differentiable, where);
    }
  }
  if (graph.value(whole).requires_grad && !differentiable) {
    const Tensor parts[] = {own_handle(whole), own_handle(written)};
    const Tensor* const list[] = {&parts[0], &parts[1]};
    written = record_version(ops::kRevalue, list, {}, result_like(whole, true), where);
  }
  advance(memories_[at], written);
  // On the eager tape the view's new history begins at this write, not where the view is read next.
  if (differentiable && target.impl()->recorder == this) renew(*target.impl());
  return nullptr;
}

// Records a write that does not read the old values: a copy or a fill. Such a write needs no view of them, so the key
// does not hold a view's offset (kOverwrite has it as a float). Returns kNoValue for other writes.
ValueId WritingTrace::record_placed(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                    ValueId whole, const Value& shown, bool differentiable,
                                    std::source_location where) {
  // On the eager tape, the old values get a gradient of zeros, so the recorded call must read them.
  if (graph.value(whole).requires_grad) return kNoValue;
  static const Tensor& kNone = *new Tensor;
  const bool fills = &op == &ops::kFill && attrs.ints.empty();
  if (!fills && &op != &ops::kCopy) return kNoValue;
  const Tensor* const source[] = {nullptr, fills ? &kNone : inputs[1]};
  return record_overwrite(whole, shown, source, attrs, differentiable, where);
}

// Records a call that makes a new version: `whole` with the part `shown` replaced. `operands`: [0] is ignored, [1] is
// the source of the part. `numbers`: holds the number that replaces an undefined source.
ValueId WritingTrace::record_overwrite(ValueId whole, const Value& shown, std::span<const Tensor* const> operands,
                                       const Attrs& numbers, bool differentiable, std::source_location where) {
  const Tensor base = own_handle(whole);
  const Tensor* const list[] = {&base, operands[1]};
  Attrs place = ops::Window{shown.sizes.numel() == 0 ? 0 : shown.offset, shown.sizes, shown.strides}.for_write();
  for (const SymFloat& number : numbers.floats) place.floats.push_back(number);
  return record_version(ops::kOverwrite, list, place, result_like(whole, differentiable), where);
}

ValueId WritingTrace::record_version(const OpDef& op, std::span<const Tensor* const> operands, const Attrs& attrs,
                                     Tensor result, std::source_location where) {
  Trace::append(op, operands, attrs, {&result, 1}, false, where);
  graph.nodes.back().in_place = true;
  return graph.nodes.back().outputs[0];
}

// Before a differentiable write, eager execution replaces some operands that lie in the written memory. If the gradient
// reads the operand, a copy replaces it. If the target is a view and the operand is the same view, a view with a new
// history replaces it. Returns these replacements.
std::vector<Tensor> WritingTrace::operands_apart(const OpDef& op, std::span<const Tensor* const> inputs,
                                                 const Memory& memory, std::source_location where) {
  std::vector<Tensor> apart(inputs.size());
  const ValueId written = memory.current, target = value_of(*inputs[0], where);
  const auto is_target = [&](const Value& v) {
    const Value& t = graph.value(target);
    return v.offset == t.offset && v.sizes == t.sizes && v.strides == t.strides;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]->defined()) continue;
    const ValueId id = value_of(*inputs[i], where);
    if (graph.value(id).root != written) continue;
    if (!op.saved.input(i)) {
      const bool needs_new_view = i > 0 && id != written && is_target(graph.value(id)) && follows_history(id) &&
                                  graph.value(written).requires_grad;
      if (needs_new_view) apart[i] = own_handle(rebuild_view_with_history(id, written));
      continue;
    }
    const Tensor read = own_handle(id);
    const Tensor* const operands[] = {&read};
    Tensor copy[] = {own_handle(id)};
    TensorImpl& impl = *copy[0].impl();
    impl.strides = contiguous_strides(impl.sizes);
    impl.offset = 0;
    Trace::append(ops::kCast, operands, {.ints = {static_cast<int64_t>(impl.dtype)}}, copy, false, where);
    apart[i] = copy[0];
  }
  return apart;
}

// True if somebody holds a view of the memory that cannot be read after the base gets a new history: a view that was
// made under no_grad, or an expanded view.
bool WritingTrace::has_unreadable_view(const Memory& memory) const {
  for (size_t i = 0; i < handles_.size(); ++i) {
    const auto id = static_cast<ValueId>(i);
    const Tensor& user = handles_[i];
    if (user.impl()->recorder != this || memory_of(graph.value(id).root) != &memory || !is_alive(id)) continue;
    if (autograd::is_no_grad_view(user) || (follows_history(id) && autograd::overlaps_itself(user))) return true;
  }
  return false;
}

Tensor WritingTrace::result_like(ValueId id, bool requires_grad) const {
  Tensor result = own_handle(id);
  result.impl()->requires_grad = requires_grad;
  return result;
}

void WritingTrace::adopt(Memory& memory) {
  if (std::exchange(memory.recorded, true)) return;
  handles_[static_cast<size_t>(memory.current)] = memory.tensor;
  memory.tensor.impl()->recorder = this;
  memory.tensor.impl()->recorded_value = memory.current;
}

void WritingTrace::advance(Memory& memory, ValueId next) {
  const ValueId before = std::exchange(memory.current, next);
  memory_at_.resize(std::max(memory_at_.size(), static_cast<size_t>(next) + 1), -1);
  memory_at_[static_cast<size_t>(next)] = static_cast<int32_t>(&memory - memories_.data());
  graph.versions.push_back({next, memory.tensor.defined() ? memory.input : -1 - memory_at_[static_cast<size_t>(next)]});
  if (memory.tensor.defined() && !memory.recorded) return;
  // The user's handle of the memory now refers to its new value.
  Tensor user = handles_[static_cast<size_t>(before)];
  handles_[static_cast<size_t>(before)] = own_handle(before);
  user.impl()->recorded_value = next;
  const bool gets_history = graph.value(next).requires_grad && !user.impl()->requires_grad;
  handles_[static_cast<size_t>(next)] = std::move(user);
  if (!gets_history) return;
  // All views of the memory get the history, too, and require a gradient from here on.
  for (size_t id = 0; id < handles_.size(); ++id)
    if (TensorImpl& impl = *handles_[id].impl(); impl.recorder == this && follows_history(static_cast<ValueId>(id)) &&
                                                 memory_of(graph.values[id].root) == &memory &&
                                                 is_alive(static_cast<ValueId>(id)))
      impl.requires_grad = true;
}

Tensor WritingTrace::own_handle(ValueId id) const {
  const Value& value = graph.value(id);
  auto* impl = new TensorImpl;
  impl->dtype = value.dtype;
  impl->device = handle(id).impl()->device;
  impl->sizes = value.sizes;
  impl->strides = value.strides;
  impl->offset = value.offset;
  impl->requires_grad = value.requires_grad;
  impl->recorder = const_cast<WritingTrace*>(this);
  impl->recorded_value = id;
  return Tensor(impl);
}

ValueId WritingTrace::renewed(ValueId id) {
  const ValueId root = graph.value(id).root;
  const Memory* memory = memory_of(root);
  if (memory == nullptr || memory->current == root) return id;
  return id == root ? memory->current : rebuild_view(id, memory->current);
}

// Records again the chain of views from the old root to `view`, starting at `root`. Returns the new view.
ValueId WritingTrace::rebuild_view(ValueId view, ValueId root) {
  if (graph.value(view).root == view) return root;
  if (graph.value(root).requires_grad && follows_history(view)) return rebuild_view_with_history(view, root);
  const auto maker = static_cast<size_t>(graph.value(view).producer);
  const ValueId source = rebuild_view(graph.nodes[maker].inputs[0], root);
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

// Records the view again, in one step from the root, so that its gradient is added to the root's gradient, as on the
// eager tape.
ValueId WritingTrace::rebuild_view_with_history(ValueId view, ValueId root) {
  return rebuild_as_view_of_root(view, root, true);
}

ValueId WritingTrace::rebuild_as_view_of_root(ValueId view, ValueId root, bool with_history) {
  const Value before = graph.value(view);
  const Origin made = graph.node(before.producer).origin;
  const Tensor whole = own_handle(root);
  const Tensor* const operands[] = {&whole};
  Tensor result[] = {own_handle(view)};
  result[0].impl()->requires_grad = with_history;
  const ops::Window window{before.sizes.numel() == 0 ? 0 : before.offset, before.sizes, before.strides};
  Trace::append(ops::kStridedView, operands, window.for_view(), result, false, made.where);
  const ValueId shown = graph.nodes.back().outputs[0];
  graph.value(shown).grad_mode = true;
  graph.value(shown).offset = before.offset;
  return shown;
}

ValueId WritingTrace::renew(TensorImpl& impl) {
  const ValueId before = impl.recorded_value, now = renewed(before);
  if (now == before) return now;
  Tensor& known = handles_[static_cast<size_t>(before)];
  // Does nothing for a handle that only the recording holds. Does nothing for a value that is the whole memory, either:
  // advance() has already moved its user's handle.
  if (known.impl() != &impl || graph.value(before).root == before) return now;
  return move_to(impl, now);
}

ValueId WritingTrace::move_to(TensorImpl& impl, ValueId now) {
  const ValueId before = impl.recorded_value;
  Tensor user = std::exchange(handles_[static_cast<size_t>(before)], own_handle(before));
  impl.recorded_value = now;
  handles_[static_cast<size_t>(now)] = std::move(user);
  return now;
}

ValueId WritingTrace::read_of_written(const Tensor& outside) {
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
  Trace::append(ops::kStridedView, operands, window.for_view(), view, false, std::source_location());
  const ValueId shown = graph.nodes.back().outputs[0];
  graph.value(shown).grad_mode = false;  // tells outside_view() that the view stands for an outside tensor
  return external_ids_[outside.impl()] = shown;
}

// Note [Stale views]. On the eager tape, a view gets the new history of its base only when something asks for it:
// an op that reads the view, or a backward from it. Until then, the order in which gradients are added up for the base
// does not include the view. So a view that leaves the recording with its base, and that nothing has read since the
// last write, stays stale: the recording gives it no history.
bool WritingTrace::may_stay_stale(ValueId id) const {
  const ValueId root = graph.value(id).root;
  const Memory* const memory = memory_of(root);
  return memory != nullptr && id != root && memory->current != root && graph.value(memory->current).requires_grad &&
         is_alive(memory->current) && follows_history(id);
}

void WritingTrace::refresh() {
  if (memories_.empty()) return;
  for (size_t id = 0, n = handles_.size(); id < n; ++id) {
    if (!is_alive(static_cast<ValueId>(id))) continue;
    TensorImpl& impl = *handles_[id].impl();
    if (impl.recorder != this) continue;
    if (static_cast<size_t>(impl.recorded_value) != id || !may_stay_stale(impl.recorded_value)) {
      renew(impl);
      continue;
    }
    const ValueId root = graph.value(impl.recorded_value).root;
    stale_views_.push_back(
        move_to(impl, rebuild_as_view_of_root(impl.recorded_value, memory_of(root)->current, false)));
  }
  for (Memory& memory : memories_) {
    if (!memory.tensor.defined() || memory.current == memory.first) continue;
    handles_[static_cast<size_t>(memory.current)] = memory.tensor;
    if (memory.recorded) memory.tensor.impl()->recorder = nullptr;
  }
  drop_unread_views();
}

// Drops views that nothing reads. With them, recordings that differ only in the places of these views would have
// different keys.
void WritingTrace::drop_unread_views() {
  ValueMap<bool> read(graph, false);
  NodeMap<bool> keep(graph, true);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const GraphNode& node = graph.nodes[n];
    keep[n] = node.op->kind != OpKind::kView || std::any_of(node.outputs.begin(), node.outputs.end(),
                                                            [&](ValueId id) { return read[id] || is_alive(id); });
    if (!keep[n]) continue;
    for (ValueId id : node.inputs)
      if (id != kNoValue) read[id] = true;
  }
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return;
  ValueMap<ValueId> now(graph, kNoValue);
  std::vector<int32_t> node_now;
  int32_t nodes = 0;
  for (size_t n = 0; n < keep.size(); ++n) node_now.push_back(keep[n] ? nodes++ : -1);
  ValueId values = 0;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const int32_t maker = graph.values[id].producer;
    if (maker >= 0 && !keep[maker]) continue;
    Value value = graph.values[id];
    if (maker >= 0) value.producer = node_now[static_cast<size_t>(maker)];
    now[id] = values;
    value.root = value.root == static_cast<ValueId>(id) ? values : now[value.root];
    if (TensorImpl& impl = *handles_[id].impl(); impl.recorder == this) impl.recorded_value = values;
    graph.values[static_cast<size_t>(values)] = std::move(value);
    handles_[static_cast<size_t>(values)] = handles_[id];
    if (static_cast<size_t>(values) < memory_at_.size())
      memory_at_[static_cast<size_t>(values)] = id < memory_at_.size() ? memory_at_[id] : -1;
    ++values;
  }
  graph.values.resize(static_cast<size_t>(values));
  handles_.resize(static_cast<size_t>(values));
  const auto rename = [&](ValueId& id) { id = id == kNoValue ? kNoValue : now[id]; };
  memory_at_.resize(std::min(memory_at_.size(), static_cast<size_t>(values)), -1);
  for (size_t n = 0; n < keep.size(); ++n) {
    if (!keep[n]) continue;
    GraphNode node = std::move(graph.nodes[n]);
    std::for_each(node.inputs.begin(), node.inputs.end(), rename);
    std::for_each(node.outputs.begin(), node.outputs.end(), rename);
    graph.nodes[static_cast<size_t>(node_now[n])] = std::move(node);
  }
  graph.nodes.resize(static_cast<size_t>(nodes));
  std::for_each(graph.inputs.begin(), graph.inputs.end(), rename);
  for (Version& version : graph.versions) rename(version.value);
  for (Memory& memory : memories_) rename(memory.first), rename(memory.current);
  std::for_each(stale_views_.begin(), stale_views_.end(), rename);
}

}  // namespace rondo::compile
