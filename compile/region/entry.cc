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
#include "rondo/runtime/base/floating_point_scope.h"

namespace rondo::compile {

namespace {

// Returns, by output, whether the usual backward gets its gradient: if the output requires one and is not hidden.
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

// Returns the input of the recording that `source` is, or whose memory it lies in; -1: none.
int32_t input_read(const BackwardInput& source, const Partition& partition) {
  if (source.kind != BackwardInput::kSaved || source.index < 0) return -1;
  const Partition::Kept& kept = partition.kept()[static_cast<size_t>(source.index)];
  if (kept.is_input) return kept.index;
  const Graph& forward = partition.forward();
  const ValueId root = forward.value(forward.outputs[static_cast<size_t>(kept.index)]).root;
  const auto found = std::find(forward.inputs.begin(), forward.inputs.end(), root);
  return found == forward.inputs.end() ? -1 : static_cast<int32_t>(found - forward.inputs.begin());
}

// Plans a seam for each block. Each parameter outside of the blocks has its own seam, because the model does not say
// when its gradient is final. The first part of a gradient that comes in parts also has its own seam.
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

uint64_t next_number() {
  static std::atomic<uint64_t> entries_made{0};
  return ++entries_made;
}

}  // namespace

Entry::Entry(const Graph& recorded, const Request& request)
    : recording_(recorded),
      floats_(floats_of(recorded)),
      device_(request.device),
      communicates_(compile::communicates(recorded)),
      options_(request.options),
      ledger_(request.ledger),
      number_(next_number()),
      stages_disabled_(disabled_stages()),
      result_marks_(recording_) {
  const auto start = std::chrono::steady_clock::now();
  const FloatTrace trace(recording_);
  if (!request.marked.empty()) others_ = std::make_unique<const OtherRecordings>(recording_, request.marked);
  if (others_ != nullptr && !others_->any()) others_ = nullptr;
  choose_usual(request);
  compile_programs(trace.graph(), request);
  guards_ = trace.guards();
  if (partition_) partition_->forget_symbols();
  compile_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void Entry::choose_usual(const Request& request) {
  usual_.gradients = usual_gradients(recording_);
  if (!is_differentiable(recording_)) return;
  parts_ = request.parts;
  usual_.at_seams = request.at_seams && !parts_.empty();
  if (!parts_.empty()) may_split_ = inputs_in_parts(recording_);
  for (int32_t input : may_split_)
    if (usual_.at_seams && request.in_parts[static_cast<size_t>(input)]) {
      usual_.in_parts.resize(recording_.inputs.size());
      usual_.in_parts[static_cast<size_t>(input)] = true;
    }
}

void Entry::compile_programs(const Graph& symbolic, const Request& request) {
  program_options_ = {.plan = {.exact = options_.exact, .mode = options_.mode, .epilogues = options_.epilogues},
                      .sizes = request.sizes,
                      .device = device_,
                      .keeps_source = checks_units()};
  const bool ranges_met = others_ != nullptr && request.ranges_met(*others_);
  bool& exact = program_options_.plan.exact;
  // Layouts are chosen even if may_relax() makes the code exact below: such code need not have eager's bits. It is
  // exact only so that each value has one formula.
  lays_out_ = !options_.exact && others_ == nullptr && target_of(device_).capabilities.prefers_channels_last;
  Derivation how{.device = device_,
                 .lays_out = lays_out_,
                 .options = options_,
                 .like = request.like,
                 .disabled = stages_disabled_};
  if (is_differentiable(recording_)) {
    how.arriving = &usual_;
    how.look = [&](const BackwardGraph& derived) {
      exact = exact || !may_relax(symbolic, &derived);
      if (exact || !any_hidden(recording_)) return;
      const BackwardGraph all = derive_backward(symbolic, {}, device_);  // of all gradients: any may be needed later
      exact = !may_relax(symbolic, &all);
    };
  } else {
    exact = exact || !may_relax(symbolic, nullptr);
  }
  DerivedGraphs made = derive(symbolic, how);
  saved_ = std::move(made.saved);
  laid_out_ = std::move(made.needed);
  partition_ = std::move(made.partition);
  if (made.backward) backward_ = compile_backward(*std::move(made.backward), *partition_, usual_, ranges_met);
  forward_ = compile_forward(partition_ ? partition_->forward() : made.recording, ranges_met);
}

DerivedGraphs Entry::derive_again(const Graph& recorded, const Arriving* arriving) const {
  return derive(recorded, {.arriving = arriving,
                           .device = device_,
                           .lays_out = lays_out_,
                           .like = partition_ ? &*partition_ : nullptr,
                           .saved = &saved_,
                           .disabled = stages_disabled_});
}

std::shared_ptr<const Program> Entry::compile_forward(const Graph& graph, bool ranges_met) const {
  ProgramOptions options = program_options_;
  for (const WriteBack& back : write_backs(recording_))
    if (back.input >= 0) options.plan.updates.push_back({.input = back.input, .output = back.output, .visible = true});
  const std::optional<SizeMarks> marks = forward_marks(ranges_met);
  options.marks = marks ? &*marks : nullptr;
  return Program::compile(graph, options);
}

CompiledBackward Entry::compile_backward(BackwardGraph derived, const Partition& partition, const Arriving& arriving,
                                         bool ranges_met) const {
  ProgramOptions options = program_options_;
  if (arriving.at_seams) options.plan.seams = seams_of(derived, partition, parts_);
  for (size_t i = 0; i < derived.inputs.size(); ++i) {
    const BackwardInput& source = derived.inputs[i];
    options.plan.donated.push_back(partition.may_donate(source));
    if (source.kind != BackwardInput::kTotal || !arriving.owned[static_cast<size_t>(source.index)]) continue;
    const auto sum = std::find(derived.grad_inputs.begin(), derived.grad_inputs.end(), source.index);
    if (sum != derived.grad_inputs.end())
      options.plan.updates.push_back(
          {static_cast<int32_t>(i), static_cast<int32_t>(sum - derived.grad_inputs.begin())});
  }
  const std::optional<SizeMarks> marks = backward_marks(arriving, ranges_met);
  options.marks = marks ? &*marks : nullptr;
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

// Returns what a program must know of the marked dimensions; nullopt: none is marked.
std::optional<SizeMarks> Entry::forward_marks(bool ranges_met) const {
  if (others_ == nullptr) return std::nullopt;
  const auto derive = [this](const Graph& recorded) {
    const DumpsOff quiet;
    return derive_again(recorded, nullptr).forward();
  };
  return SizeMarks{.graph_at = [this, derive] { return others_->map(derive); }, .ranges_met = ranges_met};
}
std::optional<SizeMarks> Entry::backward_marks(const Arriving& arriving, bool ranges_met) const {
  if (others_ == nullptr) return std::nullopt;
  const auto derive = [this, arriving](const Graph& recorded) {
    const DumpsOff quiet;
    return std::move(derive_again(recorded, &arriving).backward->graph);
  };
  return SizeMarks{.graph_at = [this, derive] { return others_->map(derive); }, .ranges_met = ranges_met};
}

KnownRecording Entry::known() const {
  // The number of inputs is limited, because each input is compared with all those before it.
  constexpr size_t kMostInputs = 256;
  if (!has_known_writes(recording_) || recording_.inputs.size() > kMostInputs || use_.forgotten ||
      stages_disabled_ != disabled_stages())
    return {};
  return {{shared_from_this(), &recording_}, device_, number_};
}

namespace {
// Returns a text such as "a gradient arrives for outputs [0-3, 6] of 8, and is added to 1 earlier gradients". A loop
// has an output for each step, so neighbours are written as a range, and many ranges as their number.
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
  return arriving.gradients == usual_.gradients && arriving.at_seams == usual_.at_seams &&
         arriving.in_parts == usual_.in_parts && arriving.in_other_layout.empty() &&
         std::none_of(arriving.totals.begin(), arriving.totals.end(), [](bool total) { return total; });
}

std::shared_ptr<const CompiledBackward> Entry::backward_for(const Arriving& arriving,
                                                            std::span<const double> recorded) const {
  if (is_usual(arriving)) return {std::shared_ptr<const void>(), &backward_};  // lives as long as this entry
  bool others_floats = false;
  {
    std::lock_guard lock(mutex_);
    for (auto [at, end] = other_backwards_.equal_range(arriving); at != end; ++at) {
      others_floats = true;
      if (!at->second.backward->guards.hold(recorded)) continue;
      at->second.last_use = ++uses_;
      return at->second.backward;
    }
    if (failed_.contains(arriving)) {
      ledger_->add_eager_run();
      return nullptr;
    }
  }
  // Compiles without the lock, which a log sink may need. Two threads may thus add two equal backwards.
  const std::shared_ptr<const CompiledBackward> made = compile_other(arriving, recorded);
  if (made == nullptr) return nullptr;
  {
    std::lock_guard lock(mutex_);
    if (other_backwards_.size() >= static_cast<size_t>(std::max(options_.max_entries, 1)))
      other_backwards_.erase(
          std::min_element(other_backwards_.begin(), other_backwards_.end(),
                           [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
    other_backwards_.emplace(arriving, OtherBackward{made, ++uses_});
  }
  ledger_->add_backward(made->program->stats(),
                        "backward: " + to_string(arriving) + (others_floats ? ", other floats" : ""));
  return made;
}

std::shared_ptr<const CompiledBackward> Entry::compile_other(const Arriving& arriving,
                                                             std::span<const double> recorded) const {
  const std::string why = "backward: " + to_string(arriving);
  const RecompilePolicy policy(options_, *ledger_);
  if (policy.must_run_eagerly(why)) return nullptr;
  const auto compile = [&] {
    const FloatTrace trace(with_recorded_floats(recording_, recorded));
    DerivedGraphs derived = derive_again(trace.graph(), &arriving);
    const Partition& kept = *derived.partition;
    invariant(kept.keeps_the_same_as(*partition_), "a backward with other floats wants other values of the forward");
    CompiledBackward made = compile_backward(*std::move(derived.backward), kept, arriving, /*ranges_met=*/false);
    made.guards = trace.guards();
    made.floats.assign(recorded.begin(), recorded.end());
    return std::make_shared<const CompiledBackward>(std::move(made));
  };
  try {
    return policy.guarded(why, true, compile);
  } catch (const std::exception& e) {
    if (!ledger_->add_failed_compilation(e)) throw;
    std::lock_guard lock(mutex_);
    failed_.insert(arriving);
    return nullptr;
  }
}

std::vector<std::shared_ptr<const Program>> Entry::backwards() const {
  std::vector<std::shared_ptr<const Program>> programs;
  if (backward_.program != nullptr) programs.push_back(backward_.program);
  std::lock_guard lock(mutex_);
  for (const auto& [arriving, other] : other_backwards_) programs.push_back(other.backward->program);
  return programs;
}

Binding::Binding(std::shared_ptr<const Entry> entry) : Binding(entry, entry->floats()) {}

Binding::Binding(std::shared_ptr<const Entry> entry, std::span<const double> recorded)
    : entry_(std::move(entry)),
      floats_(recorded.begin(), recorded.end()),
      forward_(entry_->forward().floats_at(recorded)),
      backward_(entry_->backward().program == nullptr ? nullptr : entry_->backward().program->floats_at(recorded)) {}

const Graph& Binding::graph() const {
  if (same_bits(floats_, entry_->floats())) return entry_->recording();
  std::lock_guard lock(mutex_);
  if (graph_ == nullptr) graph_ = std::make_unique<Graph>(with_recorded_floats(entry_->recording(), floats_));
  return *graph_;
}

Binding::Backward Binding::backward_for(const Arriving& arriving) const {
  if (entry_->is_usual(arriving)) return {{entry_, &entry_->backward()}, backward_};
  const FloatingPointScope floating_point;
  const std::shared_ptr<const CompiledBackward> compiled = entry_->backward_for(arriving, floats_);
  if (compiled == nullptr) return {};
  return {compiled, compiled->program->floats_at(floats_)};
}

}  // namespace rondo::compile
