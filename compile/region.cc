#include "rondo/compile/region.h"

#include <bit>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/compiled_node.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/log.h"
#include "rondo/compile/report/stages.h"
#include "rondo/compile/transform/difference.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/memory.h"

namespace rondo::compile {

// Note [What shapes a plan]. Each fact that a plan depends on is in the key, or is asked for when the plan runs:
//   in the key, of inputs       dtype, sizes, strides, requires_grad, leaf (a parameter may be read again by the
//   backward;
//                               anything else may be overwritten before it), and which of them are one tensor
//   in the key, of calls        op, operands, integers, floats, gradients of results (which covers no_grad), order
//   in the key, of outputs      which values are held, in what order; which of them only views need (hidden)
//   part of the recording       autocast (casts are recorded), train/eval, hooks and writes (they end a recording),
//                               random states (each is a recorded tensor)
//   in the key of a backward    which gradients arrive, which sums it adds to, which of these it may overwrite
//   (Arriving) asked when it runs          who else holds memory (donation, in-place sums), memory that inputs share,
//   versions of
//                               saved tensors, hooks and retained gradients, retain_graph, a parameter's 16-bit copy
//   one for each region         CompileOptions; the key does not repeat them
//   of no influence on results  thread count (fixed chunks), addresses and storage offsets, memory purposes, lines of
//   the
//                               program, marks and what was compiled before: these choose between codes of equal
//                               results
RecordingKey pack(const Graph& graph) {
  RecordingKey key;
  key.reserve(graph.nodes.size() * 8 + graph.inputs.size() * 8);
  auto add_dims = [&](const Dims& dims) {
    key.push_back(static_cast<uint64_t>(dims.rank()));
    key.insert(key.end(), dims.begin(), dims.end());
  };
  key.push_back(disabled_stages());
  key.push_back(graph.inputs.size());
  for (ValueId id : graph.inputs) {
    const Value& v = graph.value(id);
    key.push_back(static_cast<uint64_t>(id));
    key.push_back(static_cast<uint64_t>(v.dtype) << 2 | v.leaf << 1 | v.requires_grad);
    add_dims(v.sizes);
    add_dims(v.strides);
  }
  key.push_back(graph.nodes.size());
  for (const GraphNode& node : graph.nodes) {
    key.push_back(reinterpret_cast<uint64_t>(node.op));
    key.push_back(node.inputs.size() << 16 | node.outputs.size() << 8 | node.attrs.ints.size() << 4 |
                  node.attrs.floats.size());
    for (ValueId id : node.inputs) key.push_back(static_cast<uint64_t>(id));
    for (int64_t i : node.attrs.ints) key.push_back(static_cast<uint64_t>(i));
    for (double f : node.attrs.floats) key.push_back(std::bit_cast<uint64_t>(f));
    // Shapes and dtypes of results follow from the rest; whether they carry gradients does not (no_grad).
    for (ValueId id : node.outputs) key.push_back(graph.value(id).requires_grad);
  }
  for (ValueId id : graph.outputs) key.push_back(static_cast<uint64_t>(id) << 1 | graph.value(id).hidden);
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

// The base that a view would have in eager execution: where its chain of views starts, behind the last detach().
ValueId base_of(const Trace& trace, const Graph& graph, ValueId id) {
  ValueId base = kNoValue;
  while (graph.value(id).root != id && graph.value(id).producer >= 0 &&
         (graph.value(id).grad_mode || autograd::is_no_grad_view(trace.handle(id))))
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
      if (const ValueId base = base_of(trace, graph, id); base != kNoValue) based[static_cast<size_t>(base)] = true;
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
  for (ValueId id : recorded.outputs)
    arriving.push_back(recorded.value(id).requires_grad && !recorded.value(id).hidden);
  return arriving;
}

bool any_hidden(const Graph& recorded) {
  return std::any_of(recorded.outputs.begin(), recorded.outputs.end(),
                     [&](ValueId id) { return recorded.value(id).hidden; });
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
  backward.adds_onto = std::move(derived.adds_onto);
  backward.grad_inputs = std::move(derived.grad_inputs);
  return backward;
}

// What the programs of an entry are told of marked dimensions.
SizeMarks forward_marks(const Entry& entry) {
  return {.graph_at = [&entry] {
    return entry.others->map([&](const Graph& recorded) {
      if (!entry.partition) return recorded;
      return Partition(recorded, entry.saved, {}, &*entry.partition).forward();
    });
  }};
}
SizeMarks backward_marks(const Entry& entry, const Arriving& arriving) {
  return {.graph_at = [&entry, arriving] {
    return entry.others->map([&](const Graph& recorded) {
      BackwardGraph derived = derive_backward(recorded, arriving);
      Partition(recorded, entry.saved, {}, &*entry.partition).apply(derived);
      return std::move(derived.graph);
    });
  }};
}

}  // namespace

std::shared_ptr<Entry> compile_entry(const Graph& recorded, const CompileOptions& options, Sizes sizes,
                                     const Partition* like, std::span<const MarkedDim> marked,
                                     absl::FunctionRef<bool(const OtherRecordings&)> ranges_met) {
  const auto start = std::chrono::steady_clock::now();
  auto entry = std::make_shared<Entry>();
  const auto finished = [&] {
    entry->compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return entry;
  };
  ProgramOptions program{.sizes = sizes, .exact = options.exact, .mode = options.mode, .epilogues = options.epilogues};
  entry->forward_graph = recorded;
  entry->n_outputs = static_cast<int>(recorded.outputs.size());
  entry->options = options;
  if (!marked.empty()) entry->others = std::make_shared<OtherRecordings>(entry->forward_graph, marked);
  if (entry->others != nullptr && !entry->others->any()) entry->others = nullptr;
  const bool met = entry->others != nullptr && ranges_met(*entry->others);
  const auto compile_forward = [&](const Graph& graph) {
    if (entry->others == nullptr) return Program::compile(graph, program);
    SizeMarks marks = forward_marks(*entry);
    marks.ranges_met = met;
    ProgramOptions marked_program = program;
    marked_program.marks = &marks;
    return Program::compile(graph, marked_program);
  };
  bool differentiable = false;
  for (ValueId id : recorded.outputs) differentiable = differentiable || recorded.value(id).requires_grad;
  if (!differentiable) {
    program.exact = program.exact || !may_relax(recorded, nullptr);
    entry->program_options = program;
    entry->forward = compile_forward(recorded);
    return finished();
  }
  const Arriving usual{usual_gradients(recorded), {}};
  BackwardGraph derived = derive_backward(recorded, usual);
  program.exact = program.exact || !may_relax(recorded, &derived);
  if (!program.exact && any_hidden(recorded)) {  // other backwards may come
    const BackwardGraph all = derive_backward(recorded);
    program.exact = !may_relax(recorded, &all);
  }
  entry->program_options = program;
  entry->saved = values_read(derived);
  entry->partition.emplace(recorded, entry->saved, options, like);
  if (entry->others == nullptr) {
    entry->backward = compile_backward(std::move(derived), *entry->partition, program);
  } else {
    SizeMarks marks = backward_marks(*entry, usual);
    marks.ranges_met = met;
    ProgramOptions marked_program = program;
    marked_program.marks = &marks;
    entry->backward = compile_backward(std::move(derived), *entry->partition, marked_program);
  }
  entry->forward = compile_forward(entry->partition->forward());
  return finished();
}

const std::vector<OtherRecordings::Follower>& Entry::followers(std::span<const MarkedDim> dims) const {
  std::vector<std::pair<int32_t, int>> key;
  for (const MarkedDim& d : dims) key.emplace_back(d.input, d.dim);
  std::lock_guard lock(mutex_);
  if (const auto found = followers_.find(key); found != followers_.end()) return found->second;
  std::vector<MarkedDim> anyhow;  // whatever their ranges
  for (const MarkedDim& d : dims) anyhow.push_back({d.input, d.dim, {}});
  return followers_[key] = OtherRecordings(forward_graph, anyhow).followers();
}

namespace {
// "a gradient arrives for outputs [0, 2] of 4, and is added to 1 earlier gradients"
std::string to_string(const Arriving& arriving) {
  std::string outputs;
  for (size_t i = 0; i < arriving.gradients.size(); ++i)
    if (arriving.gradients[i]) absl::StrAppend(&outputs, outputs.empty() ? "" : ", ", i);
  std::string text = absl::StrCat("a gradient arrives for outputs [", outputs, "] of ", arriving.gradients.size());
  const auto totals = std::count(arriving.totals.begin(), arriving.totals.end(), true);
  if (totals > 0) absl::StrAppend(&text, ", and is added to ", totals, " earlier gradients");
  return text;
}
}  // namespace

std::shared_ptr<const CompiledBackward> Entry::backward_for(const Arriving& arriving) const {
  bool usual = arriving.gradients == usual_gradients(forward_graph);
  for (bool total : arriving.totals) usual = usual && !total;
  if (usual) return {std::shared_ptr<const void>(), &backward};  // lives as long as this entry
  {
    std::lock_guard lock(mutex_);
    if (const auto found = others_.find(arriving); found != others_.end()) {
      found->second.last_use = ++uses_;
      return found->second.backward;
    }
  }
  const std::string why = "backward: " + to_string(arriving);
  if (ledger != nullptr && ledger->must_run_eagerly(options, why)) return nullptr;
  // Without the lock, which a log sink may want. A thread that comes second drops its own.
  ProgramOptions program = program_options;
  std::optional<SizeMarks> marks;
  if (others != nullptr) program.marks = &marks.emplace(backward_marks(*this, arriving));
  const auto compile = [&] {
    return std::make_shared<const CompiledBackward>(
        compile_backward(derive_backward(forward_graph, arriving), *partition, program, arriving.owned));
  };
  const std::shared_ptr<const CompiledBackward> made = ledger == nullptr ? compile()
                                                                         : ledger->guarded(why, true, compile);
  std::lock_guard lock(mutex_);
  if (others_.size() >= static_cast<size_t>(std::max(options.max_entries, 1)))
    others_.erase(std::min_element(others_.begin(), others_.end(),
                                   [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  const auto [at, added] = others_.try_emplace(arriving, OtherBackward{made, ++uses_});
  if (added && ledger != nullptr) ledger->add_backward(made->program->stats(), why);
  return at->second.backward;
}

std::vector<std::shared_ptr<const Program>> Entry::backwards() const {
  std::vector<std::shared_ptr<const Program>> programs;
  if (backward.program != nullptr) programs.push_back(backward.program);
  std::lock_guard lock(mutex_);
  for (const auto& [arriving, other] : others_) programs.push_back(other.backward->program);
  return programs;
}

bool Ledger::must_run_eagerly(const CompileOptions& options, const std::string& why) {
  std::string warning;
  {
    std::lock_guard lock(mutex);
    const bool limit_reached = report.compilations >= options.recompile_limit;
    if (!limit_reached && stance() != Stance::kEagerOnRecompile) return false;
    // What runs eagerly may do so on every call: the first explains itself.
    if (report.eager_runs++ > 0) return true;
    report.last_recompile = why;
    if (limit_reached) warning = limit_warning();
  }
  if (!warning.empty()) log::warn_once(warning + why);
  return true;
}

void Ledger::throw_recompile(const std::string& why) {
  std::lock_guard lock(mutex);
  throw Error(absl::StrCat("region ", report.name,
                           " would have to be compiled anew (Stance::kFailOnRecompile forbids it): ", why));
}

std::string Ledger::limit_warning() const {
  return absl::StrCat("region ", report.name, ": ", report.compilations,
                      " compilations, no more (CompileOptions::recompile_limit); what is new runs eagerly: ");
}

void Ledger::add_backward(const ProgramStats& stats, const std::string& why) {
  std::string name;
  {
    std::lock_guard lock(mutex);
    ++report.other_backwards;
    report.compilations += stats.compiled > 0;
    report.compile_ms += stats.compile_ms;
    report.last_recompile = why;
    name = report.name;
  }
  if (log::enabled(log::Topic::kRecompiles)) log::write(log::Topic::kRecompiles, absl::StrCat(name, ": ", why));
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

std::shared_ptr<const Entry> Region::entry_for(const Trace& trace, const nn::ModuleCall& call, int piece) {
  const RecordingKey key = pack(trace.graph);
  if (std::shared_ptr<const Entry> entry = find(key)) return entry;
  News news;
  const std::shared_ptr<const Entry> entry = make_entry(trace, call, piece, key, news);
  // A user's sink may ask for reports: no lock is held.
  if (!news.warning.empty()) log::warn_once(news.warning);
  if (news.compiled) log_entry(news.region, *entry, news.why);
  return entry;
}

std::shared_ptr<const Entry> Region::find(const RecordingKey& key) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  found->second.last_use = ++uses_;
  return found->second.entry;
}

std::shared_ptr<const Entry> Region::make_entry(const Trace& trace, const nn::ModuleCall& call, int piece,
                                                const RecordingKey& key, News& news) {
  // Entries are added and dropped only while this is held, so that `earlier` stays valid.
  std::lock_guard one_at_a_time(compile_mutex_);
  if (std::shared_ptr<const Entry> entry = find(key)) return entry;  // another thread's, meanwhile
  const Standing standing = standing_of(piece, news);
  // What runs eagerly may do so on every call: the first explains itself, the others take no time for it.
  if (standing.eager && standing.explained) return nullptr;
  news.why = nearest_difference(standing.earlier, trace.graph, name_inputs(call.module, trace.external()));
  if (!news.warning.empty()) news.warning += news.why;
  if (!news.why.empty()) {
    std::lock_guard lock(mutex_);
    report_.last_recompile = news.why;
  }
  if (standing.eager) return nullptr;
  std::vector<int64_t> ranges{piece};
  const std::shared_ptr<Entry> entry = ledger_->guarded(
      news.why, !standing.earlier.empty(), [&] { return compile_recording(trace, call, standing.is_first, ranges); });
  news.compiled = true;
  add(key, {entry, 0, piece}, std::move(ranges));
  return entry;
}

Region::Standing Region::standing_of(int piece, News& news) {
  std::lock_guard lock(mutex_);
  Standing standing;
  for (const auto& [other, slot] : entries_)
    if (slot.piece == piece) standing.earlier.push_back(&slot.entry->forward_graph);
  standing.is_first = report_.entries == 0;
  const bool limit_reached = report_.compilations >= options_.recompile_limit;
  standing.eager = !standing.earlier.empty() && (limit_reached || stance() == Stance::kEagerOnRecompile);
  if (standing.eager) standing.explained = report_.eager_runs++ > 0;
  news.region = report_.name;
  if (standing.eager && limit_reached && !standing.explained) news.warning = ledger_->limit_warning();
  return standing;
}

std::shared_ptr<Entry> Region::compile_recording(const Trace& trace, const nn::ModuleCall& call, bool is_first,
                                                 std::vector<int64_t>& ranges) {
  const Sizes sizes = options_.shapes == Shapes::kDynamic  ? Sizes::kAny
                      : options_.shapes == Shapes::kStatic ? Sizes::kOwn
                      : is_first                           ? Sizes::kConstant
                                                           : Sizes::kVarying;
  std::vector<MarkedDim> marked = marked_dims(trace.external());
  add_marked_arguments(marked, trace.external(), call, options_.dynamic);
  const Partition* like = latest_ != nullptr && latest_->partition ? &*latest_->partition : nullptr;
  const std::shared_ptr<Entry> entry = compile_entry(trace.graph, options_, sizes, like, marked,
                                                     [&](const OtherRecordings& others) {
                                                       for (int64_t bound : others.ranges()) ranges.push_back(bound);
                                                       return ranges_met_.contains(ranges);
                                                     });
  entry->ledger = ledger_;
  return entry;
}

void Region::add(const RecordingKey& key, Slot slot, std::vector<int64_t> ranges) {
  const Entry& entry = *slot.entry;
  int kernels = 0, library_calls = 0, compiled = 0;
  for (const Program* program : {entry.forward.get(), entry.backward.program.get()}) {
    if (program == nullptr) continue;
    compiled += program->stats().compiled;
    kernels += program->stats().kernels;
    library_calls += program->stats().library_calls;
  }
  std::lock_guard lock(mutex_);
  latest_ = slot.entry;
  if (entry.others != nullptr) ranges_met_.insert(std::move(ranges));
  if (static_cast<int>(entries_.size()) >= std::max(options_.max_entries, 1)) forget_oldest();
  slot.last_use = ++uses_;
  ++report_.entries;
  report_.kernels = kernels;
  report_.library_calls = library_calls;
  report_.compile_ms += entry.compile_ms;
  report_.compilations += compiled > 0;
  report_.kept_bytes = entry.partition ? entry.partition->kept_bytes() : 0;
  report_.recomputed_flops = entry.backward.program ? recomputed_flops(entry.backward.program->graph()) : 0;
  entries_[key] = std::move(slot);
}

void Region::forget_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                  [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
}

std::shared_ptr<const Entry> Region::run(Trace& trace, const nn::ModuleCall& call, int piece) {
  choose_outputs(trace, trace.graph);
  if (trace.graph.outputs.empty()) return nullptr;
  const std::shared_ptr<const Entry> entry = entry_for(trace, call, piece);
  if (entry == nullptr) {
    run_eagerly(trace);
    return nullptr;
  }
  std::vector<Tensor> results;
  const memory::Cause cause("region ", report_.name, std::source_location::current());
  try {
    results = entry->forward->run(trace.external());
  } catch (const OutOfMemoryError&) {
    throw;  // op by op it would take more
  } catch (const Error& e) {
    // The data is wrong, for example an index. Op by op, what stands before the error gets its value, and the error
    // names its line, as in eager execution.
    note_failure(e.what());
    run_eagerly(trace);
    note_success(e.what());
    return nullptr;
  }
  std::shared_ptr<Node> node;
  if (entry->backward.program != nullptr) node = make_compiled_node(entry, trace.external(), results);
  hand_over(trace, results, node);
  if (is_marked(trace.external())) {
    std::vector<Tensor> handles;
    for (ValueId id : trace.graph.outputs) handles.push_back(trace.handle(id));
    hand_on_marks(*entry, trace.external(), handles);
  }
  return entry;
}

void Region::note_failure(const std::string& reason) {
  std::string warning;
  {
    std::lock_guard lock(mutex_);
    report_.last_failure = reason;
    if (report_.failed_runs++ == 0)
      warning = absl::StrCat("region ", report_.name, " runs op by op, because compiled code met an error: ", reason);
  }
  if (!warning.empty()) log::warn_once(warning);
}

void Region::note_success(const std::string& reason) {
  log::warn_once(absl::StrCat("region ", report().name, ": op by op there was no error where compiled code met one; ",
                              "please report this: ", reason));
}

void Region::hand_over(Trace& trace, std::span<const Tensor> results, const std::shared_ptr<Node>& node) {
  const Graph& graph = trace.graph;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId id = graph.outputs[i];
    Tensor handle = trace.handle(id);
    const Tensor& result = results[i];
    if (!result.defined()) continue;  // an op before it threw
    TensorImpl& impl = *handle.impl();
    impl.storage = result.storage();
    impl.offset = result.storage_offset();
    impl.recorder = nullptr;
    if (graph.value(id).requires_grad) {
      if (node != nullptr) {
        set_history(handle, node, static_cast<int>(i));
      } else {
        const Edge edge = autograd::gradient_edge(result);
        autograd::set_history(handle, edge.node, edge.output);
      }
    }
    if (const ValueId base = base_of(trace, graph, id); base != kNoValue)
      autograd::mark_view(handle, trace.handle(base), autograd::is_no_grad_view(handle));
  }
}

void Region::run_eagerly(Trace& trace) {
  const Graph& graph = trace.graph;
  std::vector<Tensor> values(graph.values.size()), results;
  for (size_t i = 0; i < graph.inputs.size(); ++i) values[static_cast<size_t>(graph.inputs[i])] = trace.external()[i];
  const auto hand_over_all = [&] {
    for (ValueId id : graph.outputs) results.push_back(values[static_cast<size_t>(id)]);
    hand_over(trace, results, nullptr);
  };
  try {
    compile::run_eagerly(graph, values);
  } catch (...) {
    hand_over_all();
    throw;
  }
  hand_over_all();
}

void Region::begin_call(const nn::ModuleCall& call) {
  if (!options_.dynamic.empty()) check_arguments(report_.name, call, options_.dynamic);
  std::lock_guard lock(mutex_);
  ++report_.calls;
}
void Region::count_replay() {
  std::lock_guard lock(mutex_);
  ++report_.replays;
}
void Region::refuse_replay(const std::string& why) {
  std::string known;
  {
    std::lock_guard lock(mutex_);
    known = std::exchange(report_.why_not_replayed, why);
  }
  if (known != why) log::write(log::Topic::kPerfHints, report_.name + " is recorded on every call: " + why);
}
void Region::verify_replay(Trace& trace, const Entry& expected) const {
  choose_outputs(trace, trace.graph);
  const Graph& recorded = trace.graph;
  if (pack(recorded) == pack(expected.forward_graph)) return;
  const Graph* const before[] = {&expected.forward_graph};
  throw Error(absl::StrCat("Capture::kVerify: a replay of ", report_.name,
                           " would not be what its forward does now: ", nearest_difference(before, recorded, {})));
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
