#include "rondo/compile/region/entry.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/recompile_policy.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {

namespace {

// By input of a simplified graph: whether anything reads it.
std::vector<bool> inputs_read(const Graph& simplified) {
  ValueMap<bool> read(simplified, false);
  std::vector<bool> inputs;
  for (const GraphNode& node : simplified.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue) read[id] = true;
  for (ValueId id : simplified.outputs) read[simplified.value(id).root] = true;
  for (ValueId id : simplified.inputs) inputs.push_back(read[id]);
  return inputs;
}

// The values of the forward that a derived backward reads once it is simplified.
std::vector<ValueId> values_read(const BackwardGraph& derived) {
  const std::vector<bool> read = inputs_read(simplify(derived.graph));
  std::vector<ValueId> values;
  for (size_t i = 0; i < derived.inputs.size(); ++i)
    if (derived.inputs[i].kind == BackwardInput::kSaved && read[i] && !derived.inputs[i].is_stale())
      values.push_back(derived.inputs[i].index);
  return values;
}

// The gradients of all outputs that require one; hidden ones get none in the ordinary course.
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

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.dtype() != b.dtype() || !(a.sizes() == b.sizes()) || !(a.strides() == b.strides()) || a.device() != b.device())
    return false;
  const Tensor x = a.contiguous().to(kCPU), y = b.contiguous().to(kCPU);
  return x.numel() == 0 || std::memcmp(x.raw_data(), y.raw_data(), static_cast<size_t>(x.nbytes())) == 0;
}
bool same_input(const BackwardInput& a, const BackwardInput& b) {
  return a.kind == b.kind && a.index == b.index && same_bits(a.constant, b.constant);
}

// The floats with which `compiled` does what was derived from a recording with other floats; null: it cannot.
std::shared_ptr<const Floats> floats_of(BackwardGraph derived, const Partition& partition,
                                        const CompiledBackward& compiled) {
  partition.apply(derived);
  if (derived.contributions != compiled.contributions || derived.grad_inputs != compiled.grad_inputs ||
      !std::equal(derived.inputs.begin(), derived.inputs.end(), compiled.inputs.begin(), compiled.inputs.end(),
                  same_input))
    return nullptr;
  const Graph graph = simplify(std::move(derived.graph));
  if (!same_but_floats(graph, compiled.program->graph())) return nullptr;
  return std::make_shared<Floats>(floats_for(compiled.program->plan(), graph));
}

CompiledBackward compile_backward(BackwardGraph derived, const Partition& partition, ProgramOptions options,
                                  const std::vector<bool>& owned = {}) {
  partition.apply(derived);
  for (size_t i = 0; i < derived.inputs.size(); ++i) {
    const BackwardInput& source = derived.inputs[i];
    options.plan.donated.push_back(partition.may_donate(source));
    if (source.kind != BackwardInput::kTotal || !owned[static_cast<size_t>(source.index)]) continue;
    const auto sum = std::find(derived.grad_inputs.begin(), derived.grad_inputs.end(), source.index);
    if (sum != derived.grad_inputs.end())
      options.plan.updates.push_back(
          {static_cast<int32_t>(i), static_cast<int32_t>(sum - derived.grad_inputs.begin())});
  }
  CompiledBackward backward;
  backward.program = Program::compile(std::move(derived.graph), options);
  backward.inputs = std::move(derived.inputs);
  const std::vector<bool> read = inputs_read(backward.program->graph());
  for (size_t i = 0; i < read.size(); ++i) {
    const BackwardInput& input = backward.inputs[i];
    if (read[i] && input.is_stale()) backward.stale_for = std::max(backward.stale_for, input.stale_for);
    invariant(!read[i] || input.kind != BackwardInput::kSaved || input.index >= 0 || input.is_stale(),
              "a backward reads what the forward did not keep");
  }
  backward.contributions = std::move(derived.contributions);
  backward.grad_inputs = std::move(derived.grad_inputs);
  return backward;
}

// The marked dimensions, as the programs of an entry are told of them.
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
      BackwardGraph derived = derive_backward(recorded, arriving, entry.device);
      Partition(recorded, entry.saved, {}, &*entry.partition).apply(derived);
      return std::move(derived.graph);
    });
  }};
}

}  // namespace

std::shared_ptr<Entry> compile_entry(const Graph& recorded, const EntryRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  auto entry = std::make_shared<Entry>();
  const auto finished = [&] {
    entry->compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return entry;
  };
  const CompileOptions& options = request.options;
  ProgramOptions program{.plan = {.exact = options.exact, .mode = options.mode, .epilogues = options.epilogues},
                         .sizes = request.sizes,
                         .device = request.device};
  entry->device = request.device;
  bool& exact = program.plan.exact;
  std::vector<Update> written;
  for (const WriteBack& back : write_backs(recorded))
    if (back.input >= 0) written.push_back({.input = back.input, .output = back.output, .visible = true});
  entry->forward_graph = recorded;
  entry->n_outputs = static_cast<int>(recorded.outputs.size());
  entry->options = options;
  if (!request.marked.empty()) entry->others = std::make_shared<OtherRecordings>(entry->forward_graph, request.marked);
  if (entry->others != nullptr && !entry->others->any()) entry->others = nullptr;
  const bool met = entry->others != nullptr && request.ranges_met(*entry->others);
  const auto compile_forward = [&](const Graph& graph) {
    ProgramOptions forward_program = program;
    forward_program.plan.updates = written;
    if (entry->others == nullptr) return Program::compile(graph, forward_program);
    SizeMarks marks = forward_marks(*entry);
    marks.ranges_met = met;
    forward_program.marks = &marks;
    return Program::compile(graph, forward_program);
  };
  bool differentiable = false;
  for (ValueId id : recorded.outputs) differentiable = differentiable || recorded.value(id).requires_grad;
  if (!differentiable) {
    exact = exact || !may_relax(recorded, nullptr);
    entry->program_options = program;
    entry->forward = compile_forward(recorded);
    return finished();
  }
  const Arriving usual{usual_gradients(recorded), {}};
  BackwardGraph derived = derive_backward(recorded, usual, request.device);
  exact = exact || !may_relax(recorded, &derived);
  if (!exact && any_hidden(recorded)) {  // other backwards may come
    const BackwardGraph all = derive_backward(recorded, {}, request.device);
    exact = !may_relax(recorded, &all);
  }
  entry->program_options = program;
  entry->saved = values_read(derived);
  entry->partition.emplace(recorded, entry->saved, options, request.like);
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

bool Entry::is_usual(const Arriving& arriving) const {
  return arriving.gradients == usual_gradients(forward_graph) &&
         std::none_of(arriving.totals.begin(), arriving.totals.end(), [](bool total) { return total; });
}

std::shared_ptr<const CompiledBackward> Entry::backward_for(const Arriving& arriving) const {
  if (is_usual(arriving)) return {std::shared_ptr<const void>(), &backward};  // lives as long as this entry
  {
    std::lock_guard lock(mutex_);
    if (const auto found = others_.find(arriving); found != others_.end()) {
      found->second.last_use = ++uses_;
      return found->second.backward;
    }
    if (failed_.contains(arriving)) {
      if (ledger != nullptr) ledger->add_eager_run();
      return nullptr;
    }
  }
  // Without the lock, which a log sink may want. A thread that comes second drops its own.
  const std::shared_ptr<const CompiledBackward> made = compile_backward_of(forward_graph, *partition, arriving);
  if (made == nullptr) return nullptr;
  bool added = false;
  std::shared_ptr<const CompiledBackward> kept;
  {
    std::lock_guard lock(mutex_);
    if (others_.size() >= static_cast<size_t>(std::max(options.max_entries, 1)))
      others_.erase(std::min_element(others_.begin(), others_.end(), [](const auto& a, const auto& b) {
        return a.second.last_use < b.second.last_use;
      }));
    const auto [at, is_new] = others_.try_emplace(arriving, OtherBackward{made, ++uses_});
    added = is_new;
    kept = at->second.backward;
  }
  if (added && ledger != nullptr) ledger->add_backward(made->program->stats(), "backward: " + to_string(arriving));
  return kept;
}

std::shared_ptr<const CompiledBackward> Entry::compile_backward_of(const Graph& recorded, const Partition& kept,
                                                                   const Arriving& arriving) const {
  const std::string why = "backward: " + to_string(arriving);
  std::optional<RecompilePolicy> policy;
  if (ledger != nullptr) policy.emplace(options, *ledger);
  if (policy && policy->must_run_eagerly(why)) return nullptr;
  ProgramOptions program = program_options;
  std::optional<SizeMarks> marks;
  if (others != nullptr) program.marks = &marks.emplace(backward_marks(*this, arriving));
  const auto compile = [&] {
    return std::make_shared<const CompiledBackward>(
        compile_backward(derive_backward(recorded, arriving, device), kept, program, arriving.owned));
  };
  if (!policy) return compile();
  try {
    return policy->guarded(why, true, compile);
  } catch (const std::exception& e) {
    if (!ledger->add_failed_compilation(e)) throw;
    std::lock_guard lock(mutex_);
    failed_.insert(arriving);
    return nullptr;
  }
}

std::vector<std::shared_ptr<const Program>> Entry::backwards() const {
  std::vector<std::shared_ptr<const Program>> programs;
  if (backward.program != nullptr) programs.push_back(backward.program);
  std::lock_guard lock(mutex_);
  for (const auto& [arriving, other] : others_) programs.push_back(other.backward->program);
  return programs;
}

Binding::Binding(std::shared_ptr<const Entry> entry)
    : entry_(std::move(entry)),
      forward_(entry_->forward->floats()),
      backward_(entry_->backward.program == nullptr ? nullptr : entry_->backward.program->floats()) {}

std::shared_ptr<const Binding> Binding::make(std::shared_ptr<const Entry> of, const Graph& recorded) {
  auto binding = std::make_shared<Binding>(std::move(of));
  const Entry& entry = *binding->entry_;
  for (const GraphNode& node : recorded.nodes)
    binding->floats_.insert(binding->floats_.end(), node.attrs.floats.begin(), node.attrs.floats.end());
  const DumpsOff quiet;
  const auto bind_forward = [&](const Graph& unplanned) {
    const Graph graph = simplify(unplanned);
    if (!same_but_floats(graph, entry.forward->graph())) return false;
    binding->forward_ = std::make_shared<Floats>(floats_for(entry.forward->plan(), graph));
    return true;
  };
  try {
    if (!entry.partition) return bind_forward(recorded) ? binding : nullptr;
    const Partition partition(recorded, entry.saved, {}, &*entry.partition);
    if (!partition.keeps_the_same_as(*entry.partition) || !bind_forward(partition.forward())) return nullptr;
    const Arriving usual{usual_gradients(recorded), {}};
    binding->backward_ = floats_of(derive_backward(recorded, usual, entry.device), partition, entry.backward);
    return binding->backward_ == nullptr ? nullptr : binding;
  } catch (const std::exception&) {
    return nullptr;  // compiling it will say what is wrong
  }
}

const Graph& Binding::graph() const {
  if (is_own()) return entry_->forward_graph;
  std::lock_guard lock(mutex_);
  if (graph_ == nullptr) {
    auto graph = std::make_unique<Graph>(entry_->forward_graph);
    size_t next = 0;
    for (GraphNode& node : graph->nodes)
      for (size_t i = 0; i < node.attrs.floats.size(); ++i) node.attrs.floats[i] = floats_[next++];
    graph_ = std::move(graph);
  }
  return *graph_;
}

Binding::Backward Binding::backward_for(const Arriving& arriving) const {
  if (entry_->is_usual(arriving)) return {entry_->backward_for(arriving), backward_};
  if (!is_own()) {
    std::lock_guard lock(mutex_);
    if (const auto found = others_.find(arriving); found != others_.end()) return found->second;
  }
  Backward made{entry_->backward_for(arriving), nullptr};
  if (made.compiled == nullptr) return made;
  if (is_own()) return {made.compiled, made.compiled->program->floats()};
  const DumpsOff quiet;
  const Partition partition(graph(), entry_->saved, {}, &*entry_->partition);
  made.floats = floats_of(derive_backward(graph(), arriving, entry_->device), partition, *made.compiled);
  if (made.floats == nullptr) {
    made.compiled = entry_->compile_backward_of(graph(), partition, arriving);
    if (made.compiled == nullptr) return {};
    made.floats = made.compiled->program->floats();
    if (entry_->ledger != nullptr)
      entry_->ledger->add_backward(made.compiled->program->stats(),
                                   "backward: " + to_string(arriving) + ", other floats");
  }
  std::lock_guard lock(mutex_);
  constexpr size_t kMostKept = 32;
  if (others_.size() >= kMostKept) others_.erase(others_.begin());
  return others_.try_emplace(arriving, made).first->second;
}

void hand_on_marks(const Entry& entry, std::span<const Tensor> inputs, std::span<const Tensor> results) {
  const std::vector<MarkedDim> dims = marked_dims(inputs);
  for (const OtherRecordings::Follower& f : entry.followers(dims)) {
    TensorImpl& impl = *results[static_cast<size_t>(f.output)].impl();
    auto marks = std::make_unique<DynamicDims>();
    if (impl.marks != nullptr) *marks = *impl.marks;
    std::erase_if(marks->marks, [&](const DynamicDims::Mark& mark) { return mark.dim == f.dim; });
    marks->marks.push_back({f.dim, dims[static_cast<size_t>(f.marked)].range});
    impl.marks = std::move(marks);
  }
}

}  // namespace rondo::compile
