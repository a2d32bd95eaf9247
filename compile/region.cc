#include "rondo/compile/region.h"

#include <bit>
#include <typeindex>

#include "absl/strings/str_format.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/compile/passes/passes.h"
#include "rondo/compile/trace/difference.h"
#include "rondo/runtime/autograd_extras.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::compile {

RecordingKey pack(const Graph& graph) {
  RecordingKey key;
  key.reserve(graph.nodes.size() * 8 + graph.inputs.size() * 8);
  auto add_dims = [&](const Dims& dims) {
    key.push_back(static_cast<uint64_t>(dims.rank()));
    key.insert(key.end(), dims.begin(), dims.end());
  };
  key.push_back(graph.inputs.size());
  for (ValueId id : graph.inputs) {
    const Value& v = graph.value(id);
    key.push_back(static_cast<uint64_t>(id));
    key.push_back(static_cast<uint64_t>(v.dtype) << 1 | v.requires_grad);
    add_dims(v.sizes);
    add_dims(v.strides);
  }
  for (const GraphNode& node : graph.nodes) {
    key.push_back(reinterpret_cast<uint64_t>(node.op));
    key.push_back(node.inputs.size() << 16 | node.outputs.size() << 8 | node.attrs.ints.size() << 4 | node.attrs.floats.size());
    for (ValueId id : node.inputs) key.push_back(static_cast<uint64_t>(id));
    for (int64_t i : node.attrs.ints) key.push_back(static_cast<uint64_t>(i));
    for (double f : node.attrs.floats) key.push_back(std::bit_cast<uint64_t>(f));
    // Shapes and dtypes of results follow from the rest; whether they carry gradients does not (no_grad).
    for (ValueId id : node.outputs) key.push_back(graph.value(id).requires_grad);
  }
  for (ValueId id : graph.outputs) key.push_back(static_cast<uint64_t>(id));
  return key;
}

namespace {

// The values of the forward that a derived backward reads once it is simplified.
std::vector<ValueId> values_read(const BackwardGraph& derived) {
  const Graph simplified = simplify(derived.graph);
  std::vector<bool> read(simplified.values.size(), false);
  for (const GraphNode& node : simplified.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue) read[static_cast<size_t>(id)] = true;
  for (ValueId id : simplified.outputs) read[static_cast<size_t>(simplified.value(id).root)] = true;
  std::vector<ValueId> values;
  for (size_t i = 0; i < derived.inputs.size(); ++i)
    if (derived.inputs[i].kind == BackwardInput::kSaved && read[static_cast<size_t>(simplified.inputs[i])])
      values.push_back(derived.inputs[i].index);
  return values;
}

CompiledBackward compile_backward(BackwardGraph derived, const Partition& partition, Sizes sizes) {
  partition.apply(derived);
  CompiledBackward backward;
  backward.program = Program::compile(std::move(derived.graph), sizes);
  backward.inputs = std::move(derived.inputs);
  backward.contributions = std::move(derived.contributions);
  backward.grad_inputs = std::move(derived.grad_inputs);
  return backward;
}

}  // namespace

std::shared_ptr<const Entry> compile_entry(const Graph& recorded, const CompileOptions& options, Sizes sizes,
                                           const Partition* like) {
  auto entry = std::make_shared<Entry>();
  entry->sizes = sizes;
  entry->forward_graph = recorded;
  entry->n_outputs = static_cast<int>(recorded.outputs.size());
  bool differentiable = false;
  for (ValueId id : recorded.outputs) differentiable = differentiable || recorded.value(id).requires_grad;
  if (!differentiable) {
    entry->forward = Program::compile(recorded, sizes);
    return entry;
  }
  BackwardGraph derived = derive_backward(recorded);
  entry->partition.emplace(recorded, values_read(derived), options.recompute, like);
  entry->backward = compile_backward(std::move(derived), *entry->partition, sizes);
  entry->forward = Program::compile(entry->partition->forward(), sizes);
  return entry;
}

const CompiledBackward& Entry::backward_for(const Arriving& arriving) const {
  bool all = true;
  for (bool total : arriving.totals) all = all && !total;
  for (int i = 0; i < n_outputs; ++i)
    all = all && (arriving.gradients[static_cast<size_t>(i)] || !forward_graph.value(forward_graph.outputs[static_cast<size_t>(i)]).requires_grad);
  if (all) return backward;
  std::lock_guard lock(mutex_);
  if (const auto found = others_.find(arriving); found != others_.end()) return found->second;
  return others_[arriving] = compile_backward(derive_backward(forward_graph, arriving), *partition, sizes);
}

std::vector<std::shared_ptr<const Program>> Entry::backwards() const {
  std::vector<std::shared_ptr<const Program>> programs;
  if (backward.program != nullptr) programs.push_back(backward.program);
  std::lock_guard lock(mutex_);
  for (const auto& [arriving, compiled] : others_) programs.push_back(compiled.program);
  return programs;
}

namespace {

// The tape's view of one run of an entry.
class CompiledNode final : public Node {
 public:
  CompiledNode(std::shared_ptr<const Entry> entry, std::span<const Tensor> inputs, std::span<const Tensor> results)
      : entry_(std::move(entry)) {
    n_outputs = entry_->n_outputs;
    edges.resize(inputs.size());
    for (int i : entry_->backward.grad_inputs)
      edges[static_cast<size_t>(i)] = autograd::gradient_edge(inputs[static_cast<size_t>(i)]);
    inputs_.reserve(inputs.size());
    for (const Tensor& input : inputs) inputs_.emplace_back(input, false);
    for (const Partition::Kept& kept : entry_->partition->kept())
      if (!kept.is_input) saved_.emplace_back(results[static_cast<size_t>(kept.index)], false);
      else saved_.emplace_back();
  }
  const char* name() const override { return "compiled region"; }
  bool adds_to_totals() const override { return true; }
  void release_saved() override {
    inputs_.clear();
    saved_.clear();
    released_ = true;
  }
  void backward(std::span<const Tensor> arrived, std::span<Tensor> grads_in) override {
    if (released_)
      throw Error("backward of a compiled region: its saved tensors were freed by an earlier backward; pass "
                  "retain_graph = true to that one");
    if (grad_enabled() || watches_inside()) return replay(arrived, grads_in);
    std::vector<Tensor> grads_out(arrived.begin(), arrived.end());
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    Arriving arriving;
    for (const Tensor& grad : grads_out) arriving.gradients.push_back(grad.defined());
    // Several contributions are added one by one to what later consumers sent, as on the eager tape; a single one can be
    // added afterwards.
    for (size_t i = 0; i < grads_in.size(); ++i)
      arriving.totals.push_back(grads_in[i].defined() && entry_->backward.contributions[i] > 1);
    const CompiledBackward& backward = entry_->backward_for(arriving);
    std::vector<Tensor> inputs;
    inputs.reserve(backward.inputs.size());
    for (const BackwardInput& source : backward.inputs) {
      switch (source.kind) {
        case BackwardInput::kConstant: inputs.push_back(source.constant); break;
        case BackwardInput::kGradient: inputs.push_back(grads_out[static_cast<size_t>(source.index)].contiguous()); break;
        case BackwardInput::kTotal: inputs.push_back(grads_in[static_cast<size_t>(source.index)].contiguous()); break;
        case BackwardInput::kSaved:
          inputs.push_back(source.index < 0 ? Tensor() : saved(static_cast<size_t>(source.index)));
          break;
      }
    }
    const std::vector<Tensor> grads = backward.program->run(inputs);
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto at = static_cast<size_t>(backward.grad_inputs[i]);
      grads_in[at] = grads_in[at].defined() && !arriving.totals[at] ? grads_in[at] + grads[i] : grads[i];
    }
  }

 private:
  const Tensor& saved(size_t i) const {
    const Partition::Kept& kept = entry_->partition->kept()[i];
    return (kept.is_input ? inputs_[static_cast<size_t>(kept.index)] : saved_[i]).get("a compiled region", {});
  }

  // True if somebody wants the gradient of an output from which other outputs are computed.
  bool watches_inside() const {
    for (const OutputExtras& extra : extras) {
      if (extra.hooks.empty() && extra.retained.expired()) continue;
      const ValueId watched = entry_->forward_graph.outputs[static_cast<size_t>(extra.output)];
      for (const GraphNode& node : entry_->forward_graph.nodes)
        if (std::count(node.inputs.begin(), node.inputs.end(), watched) > 0) return true;
    }
    return false;
  }

  // A second derivative, or a hook inside: the recording again, op by op, on the eager tape.
  void replay(std::span<const Tensor> grads_out, std::span<Tensor> grads_in) {
    RecorderScope eager(nullptr);
    const bool create_graph = grad_enabled();
    GradMode on(true);
    amp::Autocast as_recorded(std::nullopt);  // casts are in the recording already
    const Graph& graph = entry_->forward_graph;
    std::vector<Tensor> values(graph.values.size());
    for (size_t i = 0; i < graph.inputs.size(); ++i)
      values[static_cast<size_t>(graph.inputs[i])] = inputs_[i].get("a compiled region", {});
    // Gradients stop at aliases of the inputs: one input may be computed from another.
    for (int i : entry_->backward.grad_inputs) {
      Tensor& value = values[static_cast<size_t>(graph.inputs[static_cast<size_t>(i)])];
      Dims same;
      for (int d = 0; d < value.rank(); ++d) same.push_back(d);
      value = ops::permute(value, same);
    }
    for (const GraphNode& node : graph.nodes) {
      std::vector<TensorArg> args;
      std::vector<Tensor> outputs(node.outputs.size());
      static const Tensor kUndefined;
      for (ValueId id : node.inputs) args.emplace_back(id == kNoValue ? kUndefined : values[static_cast<size_t>(id)], node.where);
      bool differentiable = false;  // what ran under no_grad stays constant
      for (ValueId id : node.outputs) differentiable = differentiable || graph.value(id).requires_grad;
      GradMode mode(differentiable);
      call(*node.op, args, node.attrs, outputs);
      for (size_t i = 0; i < outputs.size(); ++i) values[static_cast<size_t>(node.outputs[i])] = outputs[i];
    }
    std::vector<Tensor> roots, seeds, leaves;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      if (!grads_out[i].defined()) continue;
      roots.push_back(values[static_cast<size_t>(graph.outputs[i])]);
      seeds.push_back(grads_out[i]);
    }
    for (const OutputExtras& extra : extras) {
      Tensor& value = values[static_cast<size_t>(graph.outputs[static_cast<size_t>(extra.output)])];
      if (!value.requires_grad()) continue;
      for (const Hook& hook : extra.hooks) value.register_hook(hook.fn);
      if (const auto slot = extra.retained.lock())
        value.register_hook([slot](const Tensor& grad) {
          slot->grad = slot->grad.defined() ? slot->grad + grad : grad;
          return Tensor();
        });
    }
    for (int i : entry_->backward.grad_inputs) {
      leaves.push_back(values[static_cast<size_t>(graph.inputs[static_cast<size_t>(i)])]);
      if (grads_in.empty() || !grads_in[static_cast<size_t>(i)].defined()) continue;
      // What has arrived from later consumers comes first in the sum.
      roots.push_back(leaves.back());
      seeds.push_back(grads_in[static_cast<size_t>(i)]);
    }
    const std::vector<Tensor> grads = autograd::grad(roots, leaves, seeds, true, create_graph, true);
    for (size_t i = 0; i < grads.size() && !grads_in.empty(); ++i)
      if (grads[i].defined()) grads_in[static_cast<size_t>(entry_->backward.grad_inputs[i])] = grads[i];
  }

  std::shared_ptr<const Entry> entry_;
  std::vector<SavedTensor> inputs_, saved_;
  bool released_ = false;
};

// The recording of one call of a region's module.
class RegionTrace final : public Trace {
 public:
  RegionTrace(Region& region, const nn::ModuleBase& module) : region_(region), module_(module) {}

  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override {
    if (!in_place) {
      // A view whose base was written to since gets its new history here, as in eager, and not when all of this runs.
      if (grad_enabled())
        for (const Tensor* input : inputs)
          if (is_stale_view(*input)) look_again(*input, where);
      return Trace::record(op, inputs, attrs, outputs, in_place, where);
    }
    // A write runs now, in its place in the program. Where it goes through a view, the base's history changes, too.
    const TensorImpl& target = *inputs[0]->impl();
    const Tensor base = target.recorder == this ? handle(graph.value(target.recorded_value).root) : Tensor();
    graph_break(std::string(op.name) + " in place", where);
    RecorderScope eager(nullptr);
    std::vector<TensorArg> args;
    for (const Tensor* input : inputs) args.emplace_back(*input, where);
    call_in_place(op, args, attrs);
  }

  void flush(const TensorImpl&, std::source_location where) override { graph_break("a value is read", where); }

  void flush_gradient(const TensorImpl& tensor, std::source_location where) override {
    // What has read the tensor already goes into a piece of its own, behind the hook.
    region_.count_break("a gradient is watched" + describe_location(where));
    const Tail tail = cut(graph.value(tensor.recorded_value).producer);
    finish();
    resume(tail);
  }

  void finish() {
    RecorderScope eager(nullptr);
    if (!graph.nodes.empty()) region_.run(*this, module_, piece_++);
    abandon();
  }

 private:
  bool is_stale_view(const Tensor& tensor) const {
    if (!tensor.defined() || tensor.impl()->recorder != nullptr) return false;
    const AutogradMeta* meta = tensor.impl()->autograd.get();
    return meta != nullptr && meta->base.defined() && meta->view_version != tensor.version();
  }
  void look_again(const Tensor& view, std::source_location where) {
    if (!graph.nodes.empty()) graph_break("a view of what was written in place is read", where);
    autograd::gradient_edge(view);
  }
  void graph_break(const std::string& reason, std::source_location where) {
    region_.count_break(reason + describe_location(where));
    finish();
  }
  Region& region_;
  const nn::ModuleBase& module_;
  int piece_ = 0;
};

class RegionHook final : public nn::CallHook {
 public:
  explicit RegionHook(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  void around(nn::ModuleBase& module, absl::FunctionRef<void()> forward) override {
    // Inside another recording the block is simply part of it.
    if (active_recorder() != nullptr) return forward();
    region_->count_call();
    RegionTrace trace(*region_, module);
    try {
      RecorderScope record(&trace);
      forward();
    } catch (...) {
      // What was recorded before the throw has happened, as in eager: handles that escaped get their values.
      trace.finish();
      throw;
    }
    trace.finish();
  }

 private:
  std::shared_ptr<Region> region_;
};

}  // namespace

std::shared_ptr<const Entry> Region::entry_for(const Trace& trace, const nn::ModuleBase& module, int piece) {
  const Graph& graph = trace.graph;
  const RecordingKey key = pack(graph);
  std::lock_guard lock(mutex_);
  if (auto found = entries_.find(key); found != entries_.end()) {
    found->second.last_use = ++uses_;
    return found->second.entry;
  }
  const bool first = report_.entries == 0 || options_.shapes == Shapes::kStatic;
  std::shared_ptr<const Entry> entry =
      compile_entry(graph, options_, first ? Sizes::kConstant : Sizes::kVarying,
                    latest_ != nullptr && latest_->partition ? &*latest_->partition : nullptr);
  latest_ = entry;
  std::vector<const Graph*> earlier;
  for (const auto& [other, slot] : entries_)
    if (slot.piece == piece) earlier.push_back(&slot.entry->forward_graph);
  const std::string why = nearest_difference(earlier, graph, name_inputs(module, trace.external()));
  if (!why.empty()) report_.last_recompile = why;
  log_entry(report_.name, *entry, why);
  if (static_cast<int>(entries_.size()) >= std::max(options_.max_entries, 1)) forget_oldest();
  entries_[key] = {entry, ++uses_, piece};
  ++report_.entries;
  report_.kernels = report_.library_calls = 0;
  int compiled = 0;
  for (const Program* program : {entry->forward.get(), entry->backward.program.get()}) {
    if (program == nullptr) continue;
    compiled += program->stats().compiled;
    report_.kernels += program->stats().kernels;
    report_.library_calls += program->stats().library_calls;
    report_.compile_ms += program->stats().compile_ms;
  }
  report_.compilations += compiled > 0;
  report_.kept_bytes = entry->partition ? entry->partition->kept_bytes() : 0;
  return entry;
}

void Region::forget_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  }));
}

void Region::run(Trace& trace, const nn::ModuleBase& module, int piece) {
  Graph& graph = trace.graph;
  graph.outputs.clear();
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.outputs)
      if (trace.is_alive(id)) graph.outputs.push_back(id);
  if (graph.outputs.empty()) return;
  const std::shared_ptr<const Entry> entry = entry_for(trace, module, piece);
  const std::vector<Tensor> results = entry->forward->run(trace.external());
  std::shared_ptr<CompiledNode> node;
  if (entry->backward.program != nullptr) node = std::make_shared<CompiledNode>(entry, trace.external(), results);
  for (int i = 0; i < entry->n_outputs; ++i) {
    const ValueId id = graph.outputs[static_cast<size_t>(i)];
    Tensor handle = trace.handle(id);
    const Tensor& result = results[static_cast<size_t>(i)];
    TensorImpl& impl = *handle.impl();
    impl.storage = result.storage();
    impl.offset = result.storage_offset();
    impl.recorder = nullptr;
    if (graph.value(id).requires_grad) autograd::set_history(handle, node, i);
    // A view knows its base, so that a later write through it reaches the base's history. (A root comes before its views.)
    if (!graph.value(id).grad_mode || graph.value(id).root == id) continue;
    const Tensor& base = trace.handle(graph.value(id).root);
    if (base.impl()->recorder == nullptr && base.impl()->storage) autograd::mark_view(handle, base);
  }
}

void Region::count_call() {
  std::lock_guard lock(mutex_);
  ++report_.calls;
}
void Region::count_break(const std::string& reason) {
  log::write(log::Topic::kGraphBreaks, report_.name + ": " + reason);
  std::lock_guard lock(mutex_);
  ++report_.graph_breaks;
  report_.last_break = reason;
}
std::vector<std::shared_ptr<const Entry>> Region::entries() const {
  std::lock_guard lock(mutex_);
  std::vector<Slot> slots;
  for (const auto& [key, slot] : entries_) slots.push_back(slot);
  std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.last_use < b.last_use; });
  std::vector<std::shared_ptr<const Entry>> entries;
  for (Slot& slot : slots) entries.push_back(std::move(slot.entry));
  return entries;
}
RegionReport Region::report() const {
  std::lock_guard lock(mutex_);
  return report_;
}

// ---- compile.h

std::vector<RegionReport> Regions::report() const {
  std::vector<RegionReport> reports;
  for (const auto& region : regions_) reports.push_back(region->report());
  return reports;
}

std::string Regions::summary() const {
  std::string text;
  for (const RegionReport& r : report()) {
    if (!text.empty()) text += "\n";
    if (r.entries == 0) {
      text += absl::StrFormat("region %s: not called yet, shared by %d layers", r.name, r.layers);
      continue;
    }
    text += absl::StrFormat("region %s: compiled %s in %.0f ms, reused by %d layers (%d kernels, %d library calls)", r.name,
                            r.compilations <= 1 ? "once" : absl::StrFormat("%d times", r.compilations), r.compile_ms,
                            r.layers, r.kernels, r.library_calls);
    if (r.entries > r.compilations) text += absl::StrFormat("; %d recordings", r.entries);
    if (r.graph_breaks > 0)
      text += absl::StrFormat("; %d graph breaks, the last: %s", r.graph_breaks, r.last_break);
    if (!r.last_recompile.empty()) text += "; recorded anew, the last time because " + r.last_recompile;
  }
  return text;
}

namespace {
void require_jit() {
  log::configure_from_environment();
  if (!jit_available())
    throw Error("compile: no code generator; build Rondo with LLVM 19 (llvm-19-dev), or run without compilation");
}
bool is_list_item(const nn::ModuleBase& module) {
  return !module.name().empty() && module.name().find_first_not_of("0123456789") == std::string::npos;
}
}  // namespace

Regions compile_regions(nn::ModuleBase& model, CompileOptions options) {
  require_jit();
  std::vector<std::shared_ptr<Region>> regions;
  for (const nn::NamedModule& named : model.named_modules()) {
    std::map<std::type_index, std::shared_ptr<Region>> by_class;
    for (nn::ModuleBase* child : named.module.children()) {
      if (!is_list_item(*child)) continue;
      std::shared_ptr<Region>& region = by_class[typeid(*child)];
      if (!region) regions.push_back(region = std::make_shared<Region>(child->type_name(), options));
      region->add_layer();
      child->call_hook = std::make_shared<RegionHook>(region);
    }
  }
  return Regions(std::move(regions));
}

Regions compile_module(nn::ModuleBase& module, CompileOptions options) {
  require_jit();
  auto region = std::make_shared<Region>(module.type_name(), options);
  region->add_layer();
  module.call_hook = std::make_shared<RegionHook>(region);
  return Regions({region});
}

void disable(nn::ModuleBase& module) {
  module.apply([](nn::ModuleBase& m) { m.call_hook = nullptr; });
}

}  // namespace rondo::compile
