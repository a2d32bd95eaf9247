#include "rondo/compile/region/entry.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/recompile_policy.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/compile/transform/pipeline.h"
#include "rondo/runtime/base/floating_point_scope.h"

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

// The input of the recording that a backward reads, or whose memory it reads; -1: it is no input's.
int32_t input_read(const BackwardInput& source, const Partition& partition) {
  if (source.kind != BackwardInput::kSaved || source.index < 0) return -1;
  const Partition::Kept& kept = partition.kept()[static_cast<size_t>(source.index)];
  if (kept.is_input) return kept.index;
  const Graph& forward = partition.forward();
  const ValueId root = forward.value(forward.outputs[static_cast<size_t>(kept.index)]).root;
  const auto found = std::find(forward.inputs.begin(), forward.inputs.end(), root);
  return found == forward.inputs.end() ? -1 : static_cast<int32_t>(found - forward.inputs.begin());
}

// A seam for each block, and for each parameter outside of the blocks: these are final when they are, which nothing in
// the model says. The first part of a gradient in parts has one of its own.
std::vector<PlannedSeam> seams_of(const BackwardGraph& derived, const Partition& partition,
                                  std::span<const Part> parts) {
  std::vector<PlannedSeam> seams;
  std::vector<int32_t> seam_of(derived.contributions.size(), -1);  // by input of the recording
  for (size_t p = 0; p < parts.size(); ++p)
    for (const int32_t input : parts[p].inputs) {
      if (parts[p].path.empty() || input == parts[p].inputs[0])
        seams.push_back({.part = static_cast<int32_t>(p), .outputs = {}, .overwritten = {}});
      seam_of[static_cast<size_t>(input)] = static_cast<int32_t>(seams.size()) - 1;
    }
  const auto find = [&](int32_t input) {
    const int32_t seam = input < 0 ? -1 : seam_of[static_cast<size_t>(input)];
    return seam < 0 ? nullptr : &seams[static_cast<size_t>(seam)];
  };
  for (size_t k = 0; k < derived.inputs.size(); ++k)
    if (PlannedSeam* const seam = find(input_read(derived.inputs[k], partition)); seam != nullptr)
      seam->overwritten.push_back(static_cast<int32_t>(k));
  const auto in_parts = [&](int input) {
    return std::any_of(derived.rows.begin(), derived.rows.end(), [&](const auto& rows) { return rows.input == input; });
  };
  std::vector<PlannedSeam> first_parts;
  for (size_t i = 0; i < derived.grad_inputs.size(); ++i) {
    PlannedSeam* const seam = find(derived.grad_inputs[i]);
    if (seam == nullptr) continue;
    const auto output = static_cast<int32_t>(i);
    if (!in_parts(derived.grad_inputs[i])) seam->outputs.push_back(output);
    else first_parts.push_back({.part = seam->part, .outputs = {output}, .overwritten = {}});
  }
  seams.insert(seams.end(), first_parts.begin(), first_parts.end());
  std::erase_if(seams, [](const PlannedSeam& seam) { return seam.outputs.empty(); });
  return seams;
}

CompiledBackward compile_backward(BackwardGraph derived, const Layouts& layouts, const Partition& partition,
                                  ProgramOptions options, std::span<const Part> parts,
                                  const std::vector<bool>& owned = {}) {
  layouts.apply(derived);
  partition.apply(derived);
  options.plan.seams = seams_of(derived, partition, parts);
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
  backward.rows = std::move(derived.rows);
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
  static std::atomic<uint64_t> entries_made{0};
  entry->number = ++entries_made;
  entry->stages_disabled = disabled_stages();
  const FloatTrace trace(recorded);
  const Graph& symbolic = trace.graph();
  const auto finished = [&] {
    entry->guards = trace.guards();
    if (entry->partition) entry->partition->forget_symbols();
    entry->compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return entry;
  };
  const CompileOptions& options = request.options;
  ProgramOptions program{.plan = {.exact = options.exact, .mode = options.mode, .epilogues = options.epilogues},
                         .sizes = request.sizes,
                         .device = request.device,
                         .keeps_source = checks_units()};
  entry->device = request.device;
  bool& exact = program.plan.exact;
  std::vector<Update> written;
  for (const WriteBack& back : write_backs(recorded))
    if (back.input >= 0) written.push_back({.input = back.input, .output = back.output, .visible = true});
  entry->forward_graph = recorded;
  entry->communicates = communicates(recorded);
  entry->floats = floats_of(recorded);
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
  // What must be exact so that each value has one formula (may_relax) may lie as it will.
  const auto choose_layouts = [&] {
    entry->lays_out = !options.exact && entry->others == nullptr && enabled(CompilerStage::kLayouts) &&
                      target_of(request.device).capabilities.prefers_channels_last;
  };
  if (!differentiable) {
    exact = exact || !may_relax(symbolic, nullptr);
    entry->program_options = program;
    choose_layouts();
    entry->forward = compile_forward(entry->layouts_of(symbolic).graph());
    return finished();
  }
  entry->parts = request.parts;
  entry->at_seams = request.at_seams && !entry->parts.empty();
  if (!entry->parts.empty()) entry->may_split = inputs_in_parts(recorded);
  for (int32_t input : entry->may_split)
    if (entry->at_seams && request.in_parts[static_cast<size_t>(input)]) {
      entry->in_parts.resize(recorded.inputs.size());
      entry->in_parts[static_cast<size_t>(input)] = true;
    }
  const Arriving usual{
      .gradients = usual_gradients(recorded), .at_seams = entry->at_seams, .in_parts = entry->in_parts};
  BackwardGraph derived = derive_backward(symbolic, usual, request.device);
  exact = exact || !may_relax(symbolic, &derived);
  if (!exact && any_hidden(recorded)) {  // other backwards may come
    const BackwardGraph all = derive_backward(symbolic, {}, request.device);
    exact = !may_relax(symbolic, &all);
  }
  entry->program_options = program;
  entry->saved = values_read(derived);
  for (ValueId id : collectives_read(recorded))
    if (std::find(entry->saved.begin(), entry->saved.end(), id) == entry->saved.end()) entry->saved.push_back(id);
  choose_layouts();
  const Layouts layouts = entry->layouts_of(symbolic);
  entry->partition.emplace(layouts.graph(), layouts.needed(), options, request.like);
  if (entry->others == nullptr) {
    entry->backward = compile_backward(std::move(derived), layouts, *entry->partition, program, entry->parts_of(usual));
  } else {
    SizeMarks marks = backward_marks(*entry, usual);
    marks.ranges_met = met;
    ProgramOptions marked_program = program;
    marked_program.marks = &marks;
    entry->backward = compile_backward(std::move(derived), layouts, *entry->partition, marked_program,
                                       entry->parts_of(usual));
  }
  entry->forward = compile_forward(entry->partition->forward());
  return finished();
}

KnownRecording Entry::known(const std::shared_ptr<const Entry>& entry) {
  // Each input is compared with all those before it.
  constexpr size_t kMostInputs = 256;
  const Graph& recorded = entry->forward_graph;
  if (!Trace::has_known_writes(recorded) || recorded.inputs.size() > kMostInputs || entry->forgotten ||
      entry->stages_disabled != disabled_stages())
    return {};
  return {{entry, &recorded}, entry->device, entry->number};
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
// "a gradient arrives for outputs [0-3, 6] of 8, and is added to 1 earlier gradients". A loop has an output for each
// step: neighbours are a range, and many ranges a number.
std::string to_string(const Arriving& arriving) {
  constexpr int kMostRanges = 8;
  const auto& arrives = arriving.gradients;
  std::string outputs;
  int ranges = 0;
  for (size_t first = 0, last; first < arrives.size(); first = last + 1) {
    last = first;
    if (!arrives[first]) continue;
    while (last + 1 < arrives.size() && arrives[last + 1]) ++last;
    if (++ranges > kMostRanges) continue;
    absl::StrAppend(&outputs, ranges == 1 ? "" : ", ", first);
    if (last > first) absl::StrAppend(&outputs, "-", last);
  }
  if (ranges > kMostRanges) absl::StrAppend(&outputs, ", and ", ranges - kMostRanges, " ranges more");
  std::string text = absl::StrCat("a gradient arrives for outputs [", outputs, "] of ", arrives.size());
  const auto totals = std::count(arriving.totals.begin(), arriving.totals.end(), true);
  if (totals > 0) absl::StrAppend(&text, ", and is added to ", totals, " earlier gradients");
  const auto& others = arriving.in_other_layout;
  if (!others.empty())
    absl::StrAppend(&text, ", ", std::count(others.begin(), others.end(), true), " in another layout than the output");
  if (arriving.at_seams) text += ", and gradients leave at seams";
  if (!arriving.in_parts.empty())
    absl::StrAppend(&text, ", ", std::count(arriving.in_parts.begin(), arriving.in_parts.end(), true), " in parts");
  return text;
}
}  // namespace

bool Entry::is_usual(const Arriving& arriving) const {
  // Every backward asks, so no list is made.
  const Graph& recorded = forward_graph;
  if (arriving.gradients.size() != recorded.outputs.size() || arriving.at_seams != at_seams ||
      arriving.in_parts != in_parts)
    return false;
  for (size_t i = 0; i < recorded.outputs.size(); ++i) {
    const Value& output = recorded.value(recorded.outputs[i]);
    if (arriving.gradients[i] != (output.requires_grad && !output.hidden)) return false;
  }
  return arriving.in_other_layout.empty() &&
         std::none_of(arriving.totals.begin(), arriving.totals.end(), [](bool total) { return total; });
}

std::shared_ptr<const CompiledBackward> Entry::backward_for(const Arriving& arriving,
                                                            std::span<const double> recorded) const {
  if (is_usual(arriving)) return {std::shared_ptr<const void>(), &backward};  // lives as long as this entry
  bool others_floats = false;
  {
    std::lock_guard lock(mutex_);
    for (auto [at, end] = others_.equal_range(arriving); at != end; ++at) {
      others_floats = true;
      if (!at->second.backward->guards.hold(recorded)) continue;
      at->second.last_use = ++uses_;
      return at->second.backward;
    }
    if (failed_.contains(arriving)) {
      if (ledger != nullptr) ledger->add_eager_run();
      return nullptr;
    }
  }
  // Without the lock, which a log sink may want. A thread that comes second may add another of the same kind.
  const std::shared_ptr<const CompiledBackward> made = compile_other(arriving, recorded);
  if (made == nullptr) return nullptr;
  {
    std::lock_guard lock(mutex_);
    if (others_.size() >= static_cast<size_t>(std::max(options.max_entries, 1)))
      others_.erase(std::min_element(others_.begin(), others_.end(), [](const auto& a, const auto& b) {
        return a.second.last_use < b.second.last_use;
      }));
    others_.emplace(arriving, OtherBackward{made, ++uses_});
  }
  if (ledger != nullptr)
    ledger->add_backward(made->program->stats(),
                         "backward: " + to_string(arriving) + (others_floats ? ", other floats" : ""));
  return made;
}

std::shared_ptr<const CompiledBackward> Entry::compile_other(const Arriving& arriving,
                                                             std::span<const double> recorded) const {
  const std::string why = "backward: " + to_string(arriving);
  std::optional<RecompilePolicy> policy;
  if (ledger != nullptr) policy.emplace(options, *ledger);
  if (policy && policy->must_run_eagerly(why)) return nullptr;
  ProgramOptions program = program_options;
  std::optional<SizeMarks> marks;
  if (others != nullptr) program.marks = &marks.emplace(backward_marks(*this, arriving));
  const auto compile = [&] {
    const FloatTrace trace(with_recorded_floats(forward_graph, recorded));
    const Layouts layouts = layouts_of(trace.graph());
    const Partition kept(layouts.graph(), layouts.needed(), {}, &*partition);
    invariant(kept.keeps_the_same_as(*partition), "a backward with other floats wants other values of the forward");
    CompiledBackward made = compile_backward(derive_backward(trace.graph(), arriving, device), layouts, kept, program,
                                             parts_of(arriving), arriving.owned);
    made.guards = trace.guards();
    made.floats.assign(recorded.begin(), recorded.end());
    return std::make_shared<const CompiledBackward>(std::move(made));
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

Binding::Binding(std::shared_ptr<const Entry> entry) : Binding(entry, entry->floats) {}

Binding::Binding(std::shared_ptr<const Entry> entry, std::span<const double> recorded)
    : entry_(std::move(entry)),
      floats_(recorded.begin(), recorded.end()),
      forward_(entry_->forward->floats_at(recorded)),
      backward_(entry_->backward.program == nullptr ? nullptr : entry_->backward.program->floats_at(recorded)) {}

const Graph& Binding::graph() const {
  if (same_bits(floats_, entry_->floats)) return entry_->forward_graph;
  std::lock_guard lock(mutex_);
  if (graph_ == nullptr) graph_ = std::make_unique<Graph>(with_recorded_floats(entry_->forward_graph, floats_));
  return *graph_;
}

Binding::Backward Binding::backward_for(const Arriving& arriving) const {
  if (entry_->is_usual(arriving)) return {{entry_, &entry_->backward}, backward_};
  const FloatingPointScope floating_point;
  const std::shared_ptr<const CompiledBackward> compiled = entry_->backward_for(arriving, floats_);
  if (compiled == nullptr) return {};
  return {compiled, compiled->program->floats_at(floats_)};
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
