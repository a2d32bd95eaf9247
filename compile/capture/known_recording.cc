// Note [Known recordings]. A block is recorded each time it runs, and nearly every recording equals the one before it.
//   So each op call is first compared with the op call at the same position in the latest recording of this module.
//   While all calls are equal, no shapes are inferred and no node is made. If all are equal at the end, no key is
//   packed and looked up.
//   The comparison covers all that the key holds (Note [What shapes a plan]), and also the source lines of the program,
//   so that the known recording names the right lines. The next recording reuses the handles (Tensors) of results that
//   nobody holds.
//   An in-place write is compared, too, if it is the first write to its tensor and overwrites all of it. The tensor
//   must come from outside, have no history, and share its memory with nothing else that is read. Caches and counters
//   are such tensors. The trace keeps track of written memory (Note [Writes]) as in any other recording.
//   At the first difference, the calls so far become an ordinary recording (stop_following), and recording continues.
#include "rondo/compile/capture/known_recording.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/per_thread.h"

namespace rondo::compile {
namespace {

bool is_same_place(std::source_location a, std::source_location b) {
  return a.line() == b.line() && a.column() == b.column() && a.file_name() == b.file_name();
}

bool has_same_bits(SymFloat a, SymFloat b) {
  return std::bit_cast<uint64_t>(a.value()) == std::bit_cast<uint64_t>(b.value());
}

// True for a view from outside of the recording that needs record()'s checks. Either the view was made under no_grad,
// so an op may have to refuse it, or its base was written after the view got its history, so the history may be old.
bool has_view_to_watch(const Tensor& tensor) {
  const AutogradMeta* meta = tensor.impl()->autograd.get();
  return meta != nullptr && (meta->no_grad_view || (meta->base.defined() && meta->view_version != tensor.version()));
}

}  // namespace

FollowingTrace::FollowingTrace(SharedRandomState* draws) : draws_(draws) {
  Spare* const memory = PerThread<Spare>::get();
  if (memory == nullptr) return;
  known_handles_ = std::move(memory->handles);
  known_handles_of_ = memory->handles_of;
}

FollowingTrace::~FollowingTrace() {
  abandon();
  constexpr size_t kMaxKept = 1024;  // a whole model's handles are not kept
  Spare* const memory = PerThread<Spare>::get();
  if (memory == nullptr || known_handles_.size() > kMaxKept) return;
  memory->handles = std::move(known_handles_);
  memory->handles_of = known_handles_of_;
}

void FollowingTrace::abandon() {
  if (follows()) keep_known_handles();
  known_ = {};
  n_known_ = 0;
  known_floats_.clear();
  WritingTrace::abandon();
}

void FollowingTrace::append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                            std::span<Tensor> outputs, bool in_place, std::source_location where) {
  stop_following();
  WritingTrace::append(op, inputs, attrs, outputs, in_place, where);
}

void FollowingTrace::follow(KnownRecording known) {
  invariant(graph.nodes.empty() && handles_.empty(), "a recording that has begun cannot follow another one");
  if (known.number != known_handles_of_) known_handles_.clear();
  known_handles_of_ = known.number;
  known_ = std::move(known);
  handles_.reserve(known_.graph->values.size());
}

bool FollowingTrace::append_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                  std::span<Tensor> outputs, std::source_location where) {
  if (!follows()) return false;
  const size_t n_values = handles_.size(), n_external = external_.size();
  if (!is_next_known(op, inputs, attrs, outputs.size(), false, where)) {
    handles_.resize(n_values);
    external_.resize(n_external);
    return false;
  }
  const GraphNode& node = known_.graph->nodes[n_known_++];
  for (SymFloat number : attrs.floats) known_floats_.push_back(number.value());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ValueId id = node.outputs[i];
    outputs[i] = known_result(id);
    if (op.kind == OpKind::kView) {
      const Tensor& viewed = *inputs[0];
      outputs[i].impl()->offset = viewed.impl()->offset + known_.graph->value(id).offset -
                                  known_.graph->value(node.inputs[0]).offset;
      if (!grad_enabled() || autograd::is_no_grad_view(viewed)) autograd::mark_no_grad_view(outputs[i]);
    }
    handles_.push_back(outputs[i]);
  }
  if (draws_ != nullptr) draws_->op_recorded(inputs);
  return true;
}

bool FollowingTrace::append_known_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                        std::source_location where) {
  if (!follows()) return false;
  const size_t n_values = handles_.size(), n_external = external_.size();
  if (!is_next_known(op, inputs, attrs, 1, true, where) || !may_follow_write(*inputs[0])) {
    handles_.resize(n_values);
    external_.resize(n_external);
    return false;
  }
  const GraphNode& node = known_.graph->nodes[n_known_];
  const ValueId first = node.inputs[0], current = node.outputs[0];
  const auto at = std::find(known_.graph->inputs.begin(), known_.graph->inputs.end(), first);
  // Allocates before it changes the recording, so that running out of memory leaves the recording as it was.
  reserve_memory(current);
  for (SymFloat number : attrs.floats) known_floats_.push_back(number.value());
  handles_.push_back(known_result(current));
  ++n_known_;
  add_memory({.tensor = *inputs[0],
              .input = static_cast<int32_t>(at - known_.graph->inputs.begin()),
              .first = first,
              .current = current});
  return true;
}

// The caller has checked that the write equals the next write of the known recording. Returns false for targets that
// only record_write() handles.
bool FollowingTrace::may_follow_write(const Tensor& target) const {
  const TensorImpl& impl = *target.impl();
  if (impl.recorder != nullptr || target.requires_grad() || writes(impl.storage) ||
      (impl.autograd != nullptr && (impl.autograd->base.defined() || impl.autograd->no_grad_view)))
    return false;
  return std::none_of(external_.begin(), external_.end(), [&](const Tensor& other) {
    return other.impl() != &impl && other.impl()->storage == impl.storage;
  });
}

bool has_known_writes(const Graph& recorded) {
  std::vector<int32_t> written;
  return std::all_of(recorded.versions.begin(), recorded.versions.end(), [&](const Version& version) {
    const Value& value = recorded.value(version.value);
    if (version.input < 0 || value.requires_grad || value.producer < 0 ||
        std::count(written.begin(), written.end(), version.input) > 0)
      return false;
    written.push_back(version.input);
    const GraphNode& node = recorded.node(value.producer);
    return node.in_place && node.outputs.size() == 1 &&
           node.inputs[0] == recorded.inputs[static_cast<size_t>(version.input)];
  });
}

bool FollowingTrace::is_version(ValueId id) const {
  const Memory* memory = memory_of(id);
  return memory != nullptr && memory->current == id;
}

void FollowingTrace::show_known_versions() {
  for (const Memory& memory : memories()) handles_[static_cast<size_t>(memory.current)] = memory.tensor;
}

bool FollowingTrace::is_next_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                   size_t n_outputs, bool in_place, std::source_location where) {
  if (n_known_ == known_.graph->nodes.size()) return false;
  const GraphNode& node = known_.graph->nodes[n_known_];
  if (node.op != &op || node.in_place != in_place || node.inputs.size() != inputs.size() ||
      node.outputs.size() != n_outputs || node.attrs.floats.size() != attrs.floats.size() ||
      !is_same_place(node.where, where) || !(node.attrs.ints == attrs.ints))
    return false;
  const bool gradients = grad_enabled();
  if (known_.graph->value(node.outputs[0]).grad_mode != gradients) return false;
  if (!gradients && autograd::LeafNotes::now() != nullptr) return false;
  if (inputs.empty() && !(default_device() == known_.device)) return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!is_known_operand(*inputs[i], node.inputs[i])) return false;
  for (size_t i = 0; i < attrs.floats.size(); ++i)
    if (!has_same_bits(attrs.floats[i], node.attrs.floats[i])) return infers_as_known(node, inputs, attrs, where);
  return true;
}

bool FollowingTrace::is_known_operand(const Tensor& tensor, ValueId id) {
  if (!tensor.defined() || id == kNoValue) return !tensor.defined() && id == kNoValue;
  const TensorImpl& impl = *tensor.impl();
  const Value& value = known_.graph->value(id);
  if (impl.recorder == this) return impl.recorded_value == id && impl.requires_grad == value.requires_grad;
  if (impl.recorder == nullptr && has_writes() && impl.storage)
    if (const Memory* memory = memory_of(impl.storage); memory != nullptr)
      return memory->tensor.is_same(tensor) && memory->current == id;
  if (impl.recorder != nullptr || value.producer >= 0) return false;
  const auto at = static_cast<size_t>(id);
  if (at < handles_.size()) return handles_[at].impl() == &impl;
  // The recording reads this operand for the first time.
  if (at > handles_.size() || !impl.storage || impl.dtype != value.dtype || !(impl.device == known_.device) ||
      impl.requires_grad != value.requires_grad || tensor.requires_grad() != value.requires_grad ||
      (impl.requires_grad && tensor.is_leaf()) != value.leaf || grad_enabled() != value.grad_mode ||
      !(impl.sizes == value.sizes) || !(impl.strides == value.strides) || has_view_to_watch(tensor))
    return false;
  for (const Tensor& other : external_)
    if (other.impl() == &impl) return false;
  handles_.push_back(tensor);
  external_.push_back(tensor);
  return true;
}

// Infers the results again for floats that differ from the known call's, because the op's rule may depend on them.
bool FollowingTrace::infers_as_known(const GraphNode& node, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                     std::source_location where) const {
  InferContext infer(*node.op, inputs, attrs, where);
  if (node.in_place) infer.set_in_place();
  try {
    node.op->infer(infer);
  } catch (const Error&) {
    return false;  // recording the call as usual throws this error again, to the user
  }
  const std::span<const TensorMeta> results = infer.outputs();
  return results.size() == node.outputs.size() &&
         std::equal(results.begin(), results.end(), node.outputs.begin(), [&](const TensorMeta& meta, ValueId id) {
           const Value& value = known_.graph->value(id);
           return meta.dtype == value.dtype && meta.sizes == value.sizes && meta.strides == value.strides;
         });
}

Tensor FollowingTrace::known_result(ValueId id) {
  const Value& value = known_.graph->value(id);
  const auto at = static_cast<size_t>(id);
  Tensor handle;
  if (at < known_handles_.size()) handle = std::move(known_handles_[at]);
  if (!handle.defined()) {
    auto* impl = new TensorImpl;
    impl->dtype = value.dtype;
    impl->device = known_.device;
    impl->sizes = value.sizes;
    impl->strides = value.strides;
    impl->recorded_value = id;
    handle = Tensor(impl);
  }
  handle.impl()->requires_grad = value.requires_grad;
  handle.impl()->recorder = this;
  return handle;
}

bool FollowingTrace::is_known() const {
  if (!follows() || n_known_ != known_.graph->nodes.size()) return false;
  const Graph& known = *known_.graph;
  const auto is_held = [&](ValueId id) { return !known.value(id).hidden; };
  const auto held = std::count_if(known.outputs.begin(), known.outputs.end(), is_held);
  const auto lives = [&](ValueId id) { return is_alive(id) || is_version(id); };
  std::ptrdiff_t alive = 0;
  for (const GraphNode& node : known.nodes)
    for (ValueId id : node.outputs) alive += lives(id);
  return alive == held &&
         std::all_of(known.outputs.begin(), known.outputs.end(), [&](ValueId id) { return !is_held(id) || lives(id); });
}

void FollowingTrace::stop_following() {
  if (!follows()) return;
  const std::shared_ptr<const Graph> known = std::exchange(known_, {}).graph;
  const auto n_values = static_cast<std::ptrdiff_t>(handles_.size());
  graph.values.assign(known->values.begin(), known->values.begin() + n_values);
  for (Value& value : graph.values) value.hidden = value.overwritten = false;
  for (const Memory& memory : memories()) {
    graph.value(memory.first).overwritten = true;
    graph.versions.push_back({memory.current, memory.input});
  }
  graph.nodes.assign(known->nodes.begin(), known->nodes.begin() + static_cast<std::ptrdiff_t>(n_known_));
  const double* number = known_floats_.data();
  for (GraphNode& node : graph.nodes)
    for (size_t i = 0; i < node.attrs.floats.size(); ++i) node.attrs.floats[i] = *number++;
  for (size_t i = 0; i < external_.size(); ++i) {
    graph.inputs.push_back(known->inputs[i]);
    external_ids_[external_[i].impl()] = known->inputs[i];
  }
  n_known_ = 0;
  known_floats_.clear();
  known_handles_.clear();
}

// Called at the end of a recording. Keeps the handles that nobody else holds. The next recording on this thread reuses
// them if it follows the same known recording. Keeps none if there is no memory for the list: this runs in destructors,
// which must not throw.
void FollowingTrace::keep_known_handles() {
  try {
    known_handles_.resize(handles_.size());
  } catch (const std::bad_alloc&) {
    return;
  }
  for (const GraphNode& node : std::span(known_.graph->nodes).first(n_known_))
    for (ValueId id : node.outputs) {
      TensorImpl& impl = *handle(id).impl();
      if (impl.recorder != this) continue;  // the tensor has been computed
      impl.recorder = nullptr;
      if (impl.refs.load(std::memory_order_acquire) == 1 && !impl.storage && impl.autograd == nullptr &&
          impl.marks == nullptr)
        known_handles_[static_cast<size_t>(id)] = std::move(handles_[static_cast<size_t>(id)]);
    }
}

}  // namespace rondo::compile
