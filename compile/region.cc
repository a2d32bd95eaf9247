#include "rondo/compile/region.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/compiled_node.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/log.h"
#include "rondo/compile/passes/passes.h"
#include "rondo/compile/trace/difference.h"
#include "rondo/runtime/autograd.h"

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

// By input of a simplified graph: whether anything reads it.
std::vector<bool> inputs_read(const Graph& simplified) {
  std::vector<bool> read(simplified.values.size(), false), inputs;
  for (const GraphNode& node : simplified.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue) read[static_cast<size_t>(id)] = true;
  for (ValueId id : simplified.outputs) read[static_cast<size_t>(simplified.value(id).root)] = true;
  for (ValueId id : simplified.inputs) inputs.push_back(read[static_cast<size_t>(id)]);
  return inputs;
}

// The values of the forward that a derived backward reads once it is simplified.
std::vector<ValueId> values_read(const BackwardGraph& derived) {
  const std::vector<bool> read = inputs_read(simplify(derived.graph));
  std::vector<ValueId> values;
  for (size_t i = 0; i < derived.inputs.size(); ++i)
    if (derived.inputs[i].kind == BackwardInput::kSaved && read[i]) values.push_back(derived.inputs[i].index);
  return values;
}

// The tensor that eager execution would call the base of a view: where the chain of views made with gradients on starts.
ValueId base_of(const Graph& graph, ValueId id) {
  ValueId base = kNoValue;
  while (graph.value(id).root != id && graph.value(id).producer >= 0 && graph.value(id).grad_mode)
    id = base = graph.nodes[static_cast<size_t>(graph.value(id).producer)].inputs[0];
  return base;
}

// What is still wanted at the end of a recording. A view that is held keeps its base, so that a write through one view
// reaches the base's history, and from there all its views.
void choose_outputs(const Trace& trace, Graph& graph) {
  std::vector<bool> held(graph.values.size(), false), based(graph.values.size(), false);
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.outputs) {
      held[static_cast<size_t>(id)] = trace.is_alive(id);
      if (!held[static_cast<size_t>(id)]) continue;
      if (const ValueId base = base_of(graph, id); base != kNoValue) based[static_cast<size_t>(base)] = true;
    }
  graph.outputs.clear();
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.outputs) {
      if (!held[static_cast<size_t>(id)] && !based[static_cast<size_t>(id)]) continue;
      graph.value(id).hidden = !held[static_cast<size_t>(id)];
      graph.outputs.push_back(id);
    }
}

// Of all outputs that require a gradient; hidden ones get none in the ordinary course.
std::vector<bool> usual_gradients(const Graph& recorded) {
  std::vector<bool> arriving;
  for (ValueId id : recorded.outputs) arriving.push_back(recorded.value(id).requires_grad && !recorded.value(id).hidden);
  return arriving;
}

bool any_hidden(const Graph& recorded) {
  return std::any_of(recorded.outputs.begin(), recorded.outputs.end(), [&](ValueId id) { return recorded.value(id).hidden; });
}

CompiledBackward compile_backward(BackwardGraph derived, const Partition& partition, ProgramOptions options,
                                  const std::vector<bool>& owned = {}) {
  partition.apply(derived);
  for (size_t i = 0; i < derived.inputs.size(); ++i) {
    const BackwardInput& source = derived.inputs[i];
    options.donated.push_back(partition.may_donate(source));
    if (source.kind != BackwardInput::kTotal || !owned[static_cast<size_t>(source.index)]) continue;
    const auto sum = std::find(derived.grad_inputs.begin(), derived.grad_inputs.end(), source.index);
    if (sum != derived.grad_inputs.end())
      options.updates.push_back({static_cast<int32_t>(i), static_cast<int32_t>(sum - derived.grad_inputs.begin())});
  }
  CompiledBackward backward;
  backward.program = Program::compile(std::move(derived.graph), options);
  backward.inputs = std::move(derived.inputs);
  const std::vector<bool> read = inputs_read(backward.program->graph());
  for (size_t i = 0; i < read.size(); ++i)
    invariant(!read[i] || backward.inputs[i].kind != BackwardInput::kSaved || backward.inputs[i].index >= 0,
              "a backward reads what the forward did not keep");
  backward.contributions = std::move(derived.contributions);
  backward.grad_inputs = std::move(derived.grad_inputs);
  return backward;
}

}  // namespace

std::shared_ptr<const Entry> compile_entry(const Graph& recorded, const CompileOptions& options, Sizes sizes,
                                           const Partition* like) {
  auto entry = std::make_shared<Entry>();
  ProgramOptions program{.sizes = sizes, .exact = options.exact, .mode = options.mode};
  entry->forward_graph = recorded;
  entry->n_outputs = static_cast<int>(recorded.outputs.size());
  bool differentiable = false;
  for (ValueId id : recorded.outputs) differentiable = differentiable || recorded.value(id).requires_grad;
  if (!differentiable) {
    program.exact = program.exact || !may_relax(recorded, nullptr);
    entry->program_options = program;
    entry->forward = Program::compile(recorded, program);
    return entry;
  }
  BackwardGraph derived = derive_backward(recorded, {usual_gradients(recorded), {}});
  program.exact = program.exact || !may_relax(recorded, &derived);
  if (!program.exact && any_hidden(recorded)) {  // other backwards may come
    const BackwardGraph all = derive_backward(recorded);
    program.exact = !may_relax(recorded, &all);
  }
  entry->program_options = program;
  entry->partition.emplace(recorded, values_read(derived), options, like);
  entry->backward = compile_backward(std::move(derived), *entry->partition, program);
  entry->forward = Program::compile(entry->partition->forward(), program);
  return entry;
}

const CompiledBackward& Entry::backward_for(const Arriving& arriving) const {
  bool usual = arriving.gradients == usual_gradients(forward_graph);
  for (bool total : arriving.totals) usual = usual && !total;
  if (usual) return backward;
  std::lock_guard lock(mutex_);
  if (const auto found = others_.find(arriving); found != others_.end()) return found->second;
  return others_[arriving] = compile_backward(derive_backward(forward_graph, arriving), *partition, program_options, arriving.owned);
}

std::vector<std::shared_ptr<const Program>> Entry::backwards() const {
  std::vector<std::shared_ptr<const Program>> programs;
  if (backward.program != nullptr) programs.push_back(backward.program);
  std::lock_guard lock(mutex_);
  for (const auto& [arriving, compiled] : others_) programs.push_back(compiled.program);
  return programs;
}

std::vector<nn::ModuleBase*> repeated_blocks(nn::ModuleBase& model) {
  const auto is_list_item = [](const std::string& name) {
    return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
  };
  std::vector<nn::ModuleBase*> blocks;
  for (const nn::NamedModule& named : model.named_modules())
    for (nn::ModuleBase* child : named.module.children())
      if (is_list_item(child->name())) blocks.push_back(child);
  return blocks;
}

std::shared_ptr<const Entry> Region::entry_for(const Trace& trace, const nn::ModuleBase& module, int piece) {
  const Graph& graph = trace.graph;
  const RecordingKey key = pack(graph);
  std::lock_guard lock(mutex_);
  if (auto found = entries_.find(key); found != entries_.end()) {
    found->second.last_use = ++uses_;
    return found->second.entry;
  }
  std::vector<const Graph*> earlier;
  for (const auto& [other, slot] : entries_)
    if (slot.piece == piece) earlier.push_back(&slot.entry->forward_graph);
  const bool limit_reached = report_.compilations >= options_.recompile_limit;
  const bool eager = !earlier.empty() && (limit_reached || stance() == Stance::kEagerOnRecompile);
  // What runs eagerly may do so on every call: the first explains itself, the others take no time for it.
  if (eager && report_.eager_runs > 0) {
    ++report_.eager_runs;
    return nullptr;
  }
  const std::string why = nearest_difference(earlier, graph, name_inputs(module, trace.external()));
  if (!why.empty()) report_.last_recompile = why;
  if (eager) {
    if (limit_reached)
      log::warn_once(absl::StrCat("region ", report_.name, ": ", report_.compilations,
                                  " compilations, no more (CompileOptions::recompile_limit); what is new runs eagerly: ", why));
    ++report_.eager_runs;
    return nullptr;
  }
  const Sizes sizes = options_.shapes == Shapes::kDynamic                             ? Sizes::kAny
                      : options_.shapes == Shapes::kStatic || report_.entries == 0 ? Sizes::kConstant
                                                                                   : Sizes::kVarying;
  std::shared_ptr<const Entry> entry =
      compile_entry(graph, options_, sizes, latest_ != nullptr && latest_->partition ? &*latest_->partition : nullptr);
  int kernels = 0, library_calls = 0, compiled = 0;
  double compile_ms = 0;
  for (const Program* program : {entry->forward.get(), entry->backward.program.get()}) {
    if (program == nullptr) continue;
    compiled += program->stats().compiled;
    kernels += program->stats().kernels;
    library_calls += program->stats().library_calls;
    compile_ms += program->stats().compile_ms;
  }
  if (compiled > 0 && !earlier.empty() && stance() == Stance::kFailOnRecompile)
    throw Error(absl::StrCat("region ", report_.name, " was compiled anew (Stance::kFailOnRecompile): ", why));
  latest_ = entry;
  log_entry(report_.name, *entry, why);
  if (static_cast<int>(entries_.size()) >= std::max(options_.max_entries, 1)) forget_oldest();
  entries_[key] = {entry, ++uses_, piece};
  ++report_.entries;
  report_.kernels = kernels;
  report_.library_calls = library_calls;
  report_.compile_ms += compile_ms;
  report_.compilations += compiled > 0;
  report_.kept_bytes = entry->partition ? entry->partition->kept_bytes() : 0;
  report_.recomputed_flops = entry->backward.program ? recomputed_flops(entry->backward.program->graph()) : 0;
  return entry;
}

void Region::forget_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  }));
}

std::shared_ptr<const Entry> Region::run(Trace& trace, const nn::ModuleBase& module, int piece) {
  choose_outputs(trace, trace.graph);
  if (trace.graph.outputs.empty()) return nullptr;
  const std::shared_ptr<const Entry> entry = entry_for(trace, module, piece);
  if (entry == nullptr) {
    run_eagerly(trace);
    return nullptr;
  }
  const std::vector<Tensor> results = entry->forward->run(trace.external());
  std::shared_ptr<Node> node;
  if (entry->backward.program != nullptr) node = make_compiled_node(entry, trace.external(), results);
  hand_over(trace, results, node);
  return entry;
}

void Region::hand_over(Trace& trace, std::span<const Tensor> results, const std::shared_ptr<Node>& node) {
  const Graph& graph = trace.graph;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId id = graph.outputs[i];
    Tensor handle = trace.handle(id);
    const Tensor& result = results[i];
    TensorImpl& impl = *handle.impl();
    impl.storage = result.storage();
    impl.offset = result.storage_offset();
    impl.recorder = nullptr;
    if (graph.value(id).requires_grad) {
      if (node != nullptr) {
        autograd::set_history(handle, node, static_cast<int>(i));
      } else {
        const Edge edge = autograd::gradient_edge(result);
        autograd::set_history(handle, edge.node, edge.output);
      }
    }
    if (const ValueId base = base_of(graph, id); base != kNoValue) autograd::mark_view(handle, trace.handle(base));
  }
}

void Region::run_eagerly(Trace& trace) {
  const Graph& graph = trace.graph;
  std::vector<Tensor> values(graph.values.size()), results;
  for (size_t i = 0; i < graph.inputs.size(); ++i) values[static_cast<size_t>(graph.inputs[i])] = trace.external()[i];
  compile::run_eagerly(graph, values);
  for (ValueId id : graph.outputs) results.push_back(values[static_cast<size_t>(id)]);
  hand_over(trace, results, nullptr);
}

void Region::count_call() {
  std::lock_guard lock(mutex_);
  ++report_.calls;
}
void Region::count_replay() {
  std::lock_guard lock(mutex_);
  ++report_.replays;
}
void Region::refuse_replay(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (report_.why_not_replayed != why) log::write(log::Topic::kPerfHints, report_.name + " is recorded on every call: " + why);
  report_.why_not_replayed = why;
}
void Region::verify_replay(Trace& trace, const Entry& expected) const {
  choose_outputs(trace, trace.graph);
  const Graph& recorded = trace.graph;
  if (pack(recorded) == pack(expected.forward_graph)) return;
  const Graph* const before[] = {&expected.forward_graph};
  throw Error(absl::StrCat("Capture::kVerify: a replay of ", report_.name, " would not be what its forward does now: ",
                           nearest_difference(before, recorded, {})));
}
void Region::break_graph(const std::string& reason) {
  if (options_.fullgraph)
    throw Error(absl::StrCat("graph break in ", report_.name, " (CompileOptions::fullgraph forbids them): ", reason));
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

}  // namespace rondo::compile
