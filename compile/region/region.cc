#include "rondo/compile/region/region.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/check_floats.h"
#include "rondo/compile/region/explain_entry.h"
#include "rondo/compile/region/live_outputs.h"
#include "rondo/compile/region/run.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/transform/choose_kept.h"
#include "rondo/compile/transform/difference.h"
#include "rondo/modules/layers/decode_step.h"
#include "rondo/modules/seam_plan.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/format.h"

namespace rondo::compile {
namespace {

// True if running the graph has an effect or makes a result. Notes [Checks are effects], [Collectives are effects].
bool has_effects(const Graph& graph) {
  return !graph.outputs.empty() || std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                               [](const GraphNode& node) { return node.op->has_effects(); });
}

// Everything in a recording is on one device.
Device device_of(const FollowingTrace& trace) { return trace.handle(trace.graph.nodes[0].outputs[0]).device(); }
uint64_t device_word(Device device) {
  return static_cast<uint64_t>(device.backend) << 8 | static_cast<uint8_t>(device.index);
}

// Returns the parts of the called module whose gradients leave at seams; none if the module is one part.
std::vector<Part> parts_of(const nn::ModuleBase& module, std::span<const Tensor> inputs) {
  const std::vector<nn::Seam> seams = nn::plan_seams(module);
  if (seams.size() < 2) return {};
  HashMap<const TensorImpl*, size_t> part_of;
  std::vector<Part> parts;
  for (const nn::Seam& seam : seams) {
    for (const Tensor& p : seam.parameters) part_of[p.impl()] = parts.size();
    parts.push_back({seam.path, {}});
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (const auto found = part_of.find(inputs[i].impl()); found != part_of.end())
      parts[found->second].inputs.push_back(static_cast<int32_t>(i));
  return parts;
}

// The regions of this process, for reset_all().
struct AllRegions {
  std::mutex mutex;
  std::set<Region*> regions;
};
AllRegions& all_regions() {
  static auto* const all = new AllRegions;
  return *all;
}

}  // namespace

Region::Region(std::string name, CompileOptions options)
    : options_(std::move(options)),
      ledger_(std::make_shared<Ledger>(std::move(name))),
      policy_(options_, *ledger_),
      table_(std::max(options_.max_entries, 1)) {
  count(Outcome::kRegion);
  std::lock_guard lock(all_regions().mutex);
  all_regions().regions.insert(this);
}
Region::~Region() {
  std::lock_guard lock(all_regions().mutex);
  all_regions().regions.erase(this);
}

void Region::reset_all(ResetReport& sum) {
  std::lock_guard lock(all_regions().mutex);
  for (Region* region : all_regions().regions) {
    ++sum.regions;
    sum.recordings += region->reset();
  }
}

int64_t Region::reset() {
  std::lock_guard one_at_a_time(compile_mutex_);
  const int64_t forgotten = table_.forget_all();
  failed_.clear();
  ranges_met_.clear();
  loops_.forget();
  ledger_->restart();
  std::lock_guard lock(layers_mutex_);
  std::erase_if(layers_, [](const auto& calls) { return calls.expired(); });
  for (const std::weak_ptr<RecentCalls>& layer : layers_)
    if (const std::shared_ptr<RecentCalls> calls = layer.lock()) calls->forget();
  return forgotten;
}

std::shared_ptr<RecentCalls> Region::add_layer() {
  auto calls = std::make_shared<RecentCalls>();
  ledger_->update([](RegionReport& report) { ++report.layers; });
  std::lock_guard lock(layers_mutex_);
  layers_.push_back(calls);
  return calls;
}

std::shared_ptr<const Binding> Region::binding_for(const FollowingTrace& trace, const nn::ModuleCall& call, int piece) {
  RecordingKey key = pack(trace.graph, PackFloats::kNo);
  key.push_back(device_word(device_of(trace)));
  const RecordedFloats floats = floats_of(trace.graph);
  if (std::shared_ptr<const Binding> binding = find(key, floats)) return binding;
  CompileLog to_log;
  const std::shared_ptr<const Binding> binding = make_binding(trace, call, piece, key, floats, to_log);
  // Logs without a lock, because a user's sink may ask for reports.
  if (!to_log.warning.empty()) log::warn_once(to_log.warning);
  if (to_log.compiled) log_entry(ledger_->name(), *binding->entry(), to_log.why);
  return binding;
}

std::shared_ptr<const Binding> Region::find(const RecordingKey& key, std::span<const double> floats) {
  const std::shared_ptr<const Binding> binding = table_.find(key, floats);
  if (binding != nullptr && checks_floats()) check_forward_floats(*binding);
  return binding;
}

std::shared_ptr<const Binding> Region::make_binding(const FollowingTrace& trace, const nn::ModuleCall& call, int piece,
                                                    const RecordingKey& key, std::span<const double> floats,
                                                    CompileLog& to_log) {
  const memory::Cause cause("region ", ledger_->name(), std::source_location::current());
  std::lock_guard one_at_a_time(compile_mutex_);
  if (std::shared_ptr<const Binding> binding = find(key, floats)) return binding;  // another thread made it
  if (failed_.contains(key)) {
    ledger_->add_eager_run();
    return nullptr;
  }
  const std::vector<std::shared_ptr<const Entry>> earlier = table_.entries_of(piece);
  const RecompilePolicy::Verdict verdict = earlier.empty() ? RecompilePolicy::Verdict() : policy_.ask();
  if (verdict.eagerly && verdict.explained) return nullptr;  // explaining takes time
  std::vector<const Graph*> recordings;
  for (const std::shared_ptr<const Entry>& entry : earlier) recordings.push_back(&entry->recording());
  to_log.why = nearest_difference(recordings, trace.graph, name_inputs(call.module, trace.external()));
  if (!verdict.warning.empty()) to_log.warning = verdict.warning + to_log.why;
  if (!to_log.why.empty()) ledger_->update([&](RegionReport& report) { report.last_recompile = to_log.why; });
  if (verdict.eagerly) return nullptr;
  std::vector<int64_t> ranges{piece};
  std::shared_ptr<const Entry> entry;
  try {
    entry = policy_.guarded(to_log.why, !earlier.empty(), [&] { return compile_recording(trace, call, ranges); });
  } catch (const std::exception& e) {
    if (!ledger_->add_failed_compilation(e)) throw;
    if (failed_.size() >= static_cast<size_t>(std::max(options_.max_entries, 1))) failed_.clear();
    failed_.insert(key);
    return nullptr;
  }
  to_log.compiled = true;
  count_entry(*entry);
  if (entry->has_marked_sizes()) ranges_met_.insert(std::move(ranges));
  auto binding = std::make_shared<const Binding>(entry);
  const int64_t dropped = table_.add(key, binding, piece);
  if (dropped > 0) ledger_->update([](RegionReport& report) { ++report.forgotten; });
  if (dropped == 1)
    to_log.warning = formatted(
        "region %s: more than %d different recordings (CompileOptions::max_entries): each new one takes the place "
        "of one of the least used, which is recorded and planned anew if it comes again",
        ledger_->name(), options_.max_entries);
  return binding;
}

std::shared_ptr<const Entry> Region::compile_recording(const FollowingTrace& trace, const nn::ModuleCall& call,
                                                       std::vector<int64_t>& ranges) {
  enter_stage(CompilerStage::kCompile);
  const std::shared_ptr<const Entry> newest = table_.newest();
  const Sizes sizes = options_.shapes == Shapes::kDynamic  ? Sizes::kAny
                      : options_.shapes == Shapes::kStatic ? Sizes::kOwn
                      : newest == nullptr                  ? Sizes::kConstant
                                                           : Sizes::kVarying;
  std::vector<MarkedDim> marked = marked_dims(trace.external());
  add_marked_arguments(marked, trace.external(), call, options_.dynamic);
  const Partition* like = newest != nullptr && newest->partition() ? &*newest->partition() : nullptr;
  const auto ranges_met = [&](const OtherRecordings& others) {
    for (int64_t bound : others.ranges()) ranges.push_back(bound);
    return ranges_met_.contains(ranges);
  };
  const std::vector<Tensor>& inputs = trace.external();
  bool at_seams = false;
  std::vector<bool> in_parts;
  for (const Tensor& input : inputs) {
    const NoGrad as_in_backward;
    // Nothing waits for the gradient of a view that was made under no_grad, and asking for its edge may throw.
    const bool is_leaf = input.requires_grad() && input.is_leaf() && !autograd::is_no_grad_view(input);
    const Edge edge = is_leaf ? autograd::gradient_edge(input) : Edge();
    const LeafGrad to{.leaf = edge.node.get()};
    at_seams = at_seams || autograd::is_awaited(to);
    in_parts.push_back(autograd::comes_in_parts(to));
  }
  return std::make_shared<const Entry>(trace.graph, Entry::Request{.options = options_,
                                                                   .ledger = ledger_,
                                                                   .sizes = sizes,
                                                                   .device = device_of(trace),
                                                                   .like = like,
                                                                   .parts = parts_of(call.module, inputs),
                                                                   .at_seams = at_seams,
                                                                   .in_parts = std::move(in_parts),
                                                                   .marked = marked,
                                                                   .ranges_met = ranges_met});
}

void Region::count_entry(const Entry& entry) {
  const Program* const backward = entry.backward().program.get();
  Ledger::NewEntry made{.compile_ms = entry.compile_ms(), .programs = {entry.forward().stats()}};
  if (backward != nullptr) made.programs.push_back(backward->stats());
  if (entry.partition()) made.kept_bytes = entry.partition()->kept_bytes();
  if (backward != nullptr) made.recomputed_flops = recomputed_flops(backward->graph());
  ledger_->add_entry(made);
}

std::shared_ptr<const Binding> Region::run(FollowingTrace& trace, const nn::ModuleCall& call, int piece) {
  choose_outputs(trace);
  if (!has_effects(trace.graph)) return nullptr;
  return run_and_attach(trace, binding_for(trace, call, piece));
}

std::shared_ptr<const Binding> Region::run_known(FollowingTrace& trace, const std::shared_ptr<const Binding>& latest) {
  std::shared_ptr<const Binding> binding = table_.rebind(latest, trace.known_floats());
  if (binding == nullptr) return nullptr;
  if (checks_floats()) check_forward_floats(*binding);
  if (!has_effects(binding->entry()->recording())) return binding;
  trace.show_known_versions();
  return run_and_attach(trace, std::move(binding));
}

std::shared_ptr<const Binding> Region::run_and_attach(FollowingTrace& trace, std::shared_ptr<const Binding> binding) {
  RunResult result;
  if (binding != nullptr) {
    result = compile::run(std::move(binding), trace.external());
  } else {
    const memory::Cause cause("region ", ledger_->name(), std::source_location::current());
    count(Outcome::kEager, "a recording");
    result = run_op_by_op(trace.graph, trace.external());
  }
  attach_outputs(trace, result, ledger_->name());
  return result.binding;
}

void Region::begin_call(const nn::ModuleCall& call, bool is_replayed) {
  if (!options_.dynamic.empty() && !nn::in_decode_step()) check_arguments(ledger_->name(), call, options_.dynamic);
  ledger_->begin_call(is_replayed);
}
void Region::note_use_without_call(const std::string& what) {
  const bool is_known = ledger_->update([&](RegionReport& report) {
    const bool known = !report.used_without_call.empty();
    if (!known) report.used_without_call = what;
    return known;
  });
  if (is_known) return;
  log::warn_once(absl::StrCat(ledger_->name(), " is compiled, but runs eagerly: ", what,
                              " without a call of the compiled module. Only the module's own call runs compiled, as "
                              "model(x) does. model.forward(x) does not, and no function that calls its parts"));
}
void Region::count_loop_piece() {
  ledger_->update([](RegionReport& report) { ++report.loop_pieces; });
}
void Region::refuse_replay(const std::string& why) {
  const std::string known = ledger_->update(
      [&](RegionReport& report) { return std::exchange(report.why_not_replayed, why); });
  if (known != why) log::write(log::Topic::kPerfHints, ledger_->name() + " is recorded on every call: " + why);
}
void Region::verify_replay(FollowingTrace& trace, const Binding& expected) const {
  choose_outputs(trace);
  Graph recorded = trace.graph;
  // A parameter that is a view of another parameter is no longer a leaf once the other one was written. A plan made for
  // a leaf is right in both cases: it keeps more, and computes the same.
  for (size_t i = 0; i < std::min(recorded.inputs.size(), expected.graph().inputs.size()); ++i)
    recorded.value(recorded.inputs[i]).leaf = expected.graph().value(expected.graph().inputs[i]).leaf;
  if (pack(recorded) == pack(expected.graph())) return;
  const Graph* const before[] = {&expected.graph()};
  throw Error(absl::StrCat("Capture::kVerify: a replay of ", ledger_->name(),
                           " would not be what its forward does now: ", nearest_difference(before, recorded, {})));
}
void Region::break_graph(const std::string& reason) {
  if (options_.fullgraph)
    throw Error(
        absl::StrCat("graph break in ", ledger_->name(), " (CompileOptions::fullgraph forbids them): ", reason));
  log::write(log::Topic::kGraphBreaks, ledger_->name() + ": " + reason);
  ledger_->add_break(reason);
}
RegionReport Region::report() const {
  RegionReport report = ledger_->report();
  report.float_changes = table_.float_changes();
  return report;
}

}  // namespace rondo::compile
