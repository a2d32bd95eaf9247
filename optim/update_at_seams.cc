#include "rondo/optim/update_at_seams.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/optim/seam.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::optim {
namespace {

constexpr const char* kWho = "UpdateAtSeams";

void check(const StepOptions& step) {
  const auto refuse = [](const char* option, const char* instead) {
    throw Error(absl::StrCat(kWho, ": ", option,
                             " must see all gradients before the first parameter changes, and blocks are "
                             "updated while backward runs; ",
                             instead, ", or use Optimizer::step() after backward"));
  };
  if (std::isfinite(step.max_norm)) refuse("max_norm", "leave out clipping");
  if (step.grad_scale != 1 || step.device_scale.defined())
    refuse("grad_scale (it skips steps that overflow)", "train in f32 or bf16, without a loss scale");
  if (step.check_finite) refuse("check_finite", "leave it out");
}

}  // namespace

struct UpdateAtSeams::State {
  State(Optimizer& optimizer, UpdateAtSeamsOptions options, GradientSource* source);
  ~State();

  void claim(std::span<const Tensor> parameters);
  void start_over_seams();
  void follow_slots();
  std::vector<size_t> slots_of(std::span<const Tensor> parameters);
  void update(std::span<const size_t> slots);
  UpdateReport end_step();

  Optimizer& optimizer;
  OptimizerState& kept;  // the optimizer's state between steps
  const UpdateAtSeamsOptions options;
  GradientSource* const source;  // null: the model's seams tell when gradients are final
  std::unordered_map<const TensorImpl*, size_t> slot_of;
  std::vector<Tensor> claimed;
  std::vector<std::pair<Tensor, int64_t>> hooks;
  std::unique_ptr<Seams> seams;  // null if there is a source
  int64_t listener = 0;          // the id of this listener at the source
  std::vector<bool> updated;     // by slot: whether this step has updated it
  UpdateReport report;
  UpdateListener* told = nullptr;  // gets `facts` when the step ends: update_facts.h
  std::optional<UpdateFacts> facts;
  bool listening = true;
  bool held = false;  // a NoUpdate exists
};

UpdateAtSeams::State::State(Optimizer& optimizer, UpdateAtSeamsOptions options, GradientSource* source)
    : optimizer(optimizer),
      kept(Step::state_of(optimizer)),
      options(options),
      source(source != nullptr && kept.shards != nullptr ? &kept.shards->source() : source) {
  check(options.step);
  Step::check_options(optimizer, options.step);
  if (kept.at_seams) throw Error(absl::StrCat(kWho, ": this ", optimizer.name(), " has one already"));
  if (kept.shards != nullptr && source == nullptr)
    throw Error(absl::StrCat(kWho, ": the states of this ", optimizer.name(),
                             " are spread over processes by a ShardedOptimizer; make it from the "
                             "DistributedDataParallel: UpdateAtSeams(ddp, optimizer)"));
  follow_slots();
}

// Rebuilds slot_of if the slots have changed: between two steps, a ShardedOptimizer may cut them into pieces of
// parameters.
void UpdateAtSeams::State::follow_slots() {
  if (updated.size() == kept.slots.size() && slot_of.contains(kept.slots[0].param.impl())) return;
  slot_of.clear();
  for (size_t i = 0; i < kept.slots.size(); ++i) slot_of[kept.slots[i].param.impl()] = i;
  updated.assign(kept.slots.size(), false);
}

UpdateAtSeams::UpdateAtSeams(nn::ModuleBase& model, Optimizer& optimizer, UpdateAtSeamsOptions options) try
    : state_(std::make_unique<State>(optimizer, options, nullptr)) {
  State* const state = state_.get();
  std::vector<Tensor> parameters;
  for (const Tensor& p : model.parameters())
    if (p.requires_grad() && state->slot_of.contains(p.impl())) parameters.push_back(p);
  if (parameters.empty())
    throw Error(
        absl::StrCat(kWho, ": this ", optimizer.name(), " has no parameter of the model that requires a gradient"));
  for (const Tensor& p : parameters)
    if (const char* other = autograd::gradient_claim(p, GradientClaim::kAverager); other != nullptr)
      throw Error(absl::StrCat(
          kWho, ": ", other,
          " averages these gradients after their seams; make it from that: UpdateAtSeams(ddp, optimizer)"));
  state->claim(parameters);
  // These hooks run before those of the seams. So when a gradient is final for the first time, they see no update yet.
  for (const Tensor& p : parameters)
    state->hooks.emplace_back(
        p, autograd::on_accumulated(p, [state, slot = state->slot_of.at(p.impl())] {
          if (state->updated[slot])
            throw Error(absl::StrCat(
                kWho, ": the gradient of ", slot_name(slot), " of ", state->optimizer.name(),
                " changed after its update; call finish() once per step (after an exception: abandon()), and put "
                "all but the last backward of a step under no_update()"));
        }));
  state->seams = std::make_unique<Seams>(model, [state](const Seam& seam) {
    if (state->listening && !state->held) state->update(state->slots_of(seam.parameters));
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory("UpdateAtSeams");
}

UpdateAtSeams::UpdateAtSeams(GradientSource& source, Optimizer& optimizer, UpdateAtSeamsOptions options) try
    : state_(std::make_unique<State>(optimizer, options, &source)) {
  State* const state = state_.get();
  std::vector<Tensor> parameters;
  for (const ParamSlot& slot : state->kept.slots)
    if (slot.param.requires_grad()) parameters.push_back(slot.param);
  if (state->kept.shards != nullptr) state->kept.at_seams = true;  // the ShardedOptimizer has claimed them
  else state->claim(parameters);
  state->listener = state->source->on_final(
      [state](std::span<const Tensor> final_ones) { state->update(state->slots_of(final_ones)); });
} catch (const std::bad_alloc&) {
  throw_out_of_memory("UpdateAtSeams");
}

UpdateAtSeams::~UpdateAtSeams() = default;

// Releases the claims on the parameters, also if a constructor of UpdateAtSeams fails after claim().
UpdateAtSeams::State::~State() {
  seams.reset();
  if (source != nullptr) source->remove_on_final(listener);
  for (const auto& [parameter, id] : hooks) autograd::remove_on_accumulated(parameter, id);
  for (const Tensor& p : claimed) autograd::unclaim_gradient(p, GradientClaim::kOptimizer);
  kept.at_seams = kept.mid_step = false;
}

void UpdateAtSeams::State::claim(std::span<const Tensor> parameters) {
  for (const Tensor& p : parameters) {
    autograd::claim_gradient(p, GradientClaim::kOptimizer, kWho);
    claimed.push_back(p);
  }
  kept.at_seams = true;
}

std::vector<size_t> UpdateAtSeams::State::slots_of(std::span<const Tensor> parameters) {
  follow_slots();
  std::vector<size_t> slots;
  for (const Tensor& p : parameters)
    if (const auto slot = slot_of.find(p.impl()); slot != slot_of.end()) slots.push_back(slot->second);
  return slots;
}

void UpdateAtSeams::State::update(std::span<const size_t> slots) {
  const FloatingPointScope floating_point;
  const NoGrad off;
  Step step(optimizer);
  std::vector<size_t> chosen;
  for (size_t slot : slots)
    if (!updated[slot] && step.collect(slot)) chosen.push_back(slot);
  if (chosen.empty()) return;
  if (!kept.mid_step) {
    told = step.listener();
    if (told != nullptr) facts = Step::facts_of(optimizer, options.step);
  }
  step.decide({});
  step.update(options.step.zero_grad);
  kept.mid_step = true;
  for (size_t slot : chosen) {
    updated[slot] = true;
    if (options.drop_grads && !options.step.zero_grad) kept.slots[slot].param.set_grad(Tensor());
  }
  report.at_seams += static_cast<int64_t>(chosen.size());
}

// Resets the seams. Callbacks for seams that were not reached are ignored.
void UpdateAtSeams::State::start_over_seams() {
  if (!seams) return;
  listening = false;
  const absl::Cleanup again = [this] { listening = true; };
  seams->finish();
}

UpdateReport UpdateAtSeams::State::end_step() {
  start_over_seams();
  if (kept.shards != nullptr) {
    kept.shards->after_step();
    if (options.drop_grads && !options.step.zero_grad) kept.shards->zero_grad(/*set_to_none=*/true);
  }
  report.without_gradient = std::count(updated.begin(), updated.end(), false);
  // After a failure, one process may have updated other blocks than the other processes: the comparison of the facts
  // finds this. With shards each process has slots of its own, so this fact is not compared.
  if (facts && kept.shards == nullptr) facts->numbers[Step::kUpdatedFact] = Step::hash_of(updated);
  updated.assign(updated.size(), false);
  if (kept.mid_step) {
    kept.passes.note_step();
    if (facts) told->on_update(std::move(*facts));
  }
  facts.reset();
  kept.mid_step = false;
  return std::exchange(report, {});
}

UpdateReport UpdateAtSeams::finish() try {
  State& state = *state_;
  if (state.held)
    throw Error(absl::StrCat(kWho, "::finish: under no_update(); end its scope before the last backward"));
  if (state.source != nullptr) state.source->check_finished();
  const RecordingPause pause("UpdateAtSeams::finish() is called", std::source_location::current());
  state.follow_slots();
  std::vector<size_t> all(state.updated.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const int64_t before = state.report.at_seams;
  state.update(all);
  state.report.at_end = std::exchange(state.report.at_seams, before) - before;
  // With shards, a process may have no gradient where others have some.
  const bool any = state.kept.shards != nullptr ? state.kept.shards->has_gradients()
                                                : state.report.at_seams + state.report.at_end > 0;
  if (any) Step::average_buffers(state.optimizer);
  const UpdateReport report = state.end_step();
  if (!any && !state.options.step.allow_no_gradients) Step::throw_no_gradients(state.optimizer);
  return report;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("UpdateAtSeams::finish");
}

UpdateReport UpdateAtSeams::abandon() try {
  State& state = *state_;
  if (state.source != nullptr) state.source->check_finished();
  state.follow_slots();
  for (size_t i = 0; i < state.updated.size(); ++i)
    if (!state.updated[i]) state.kept.slots[i].param.set_grad(Tensor());
  const UpdateReport report = state.end_step();
  if (state.kept.shards != nullptr) state.kept.shards->zero_grad(/*set_to_none=*/true);
  return report;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("UpdateAtSeams::abandon");
}

bool UpdateAtSeams::is_updated(const Tensor& parameter) const {
  state_->follow_slots();
  if (state_->kept.shards == nullptr) {
    const auto slot = state_->slot_of.find(parameter.impl());
    return slot != state_->slot_of.end() && state_->updated[slot->second];
  }
  const std::vector<size_t> slots = state_->kept.shards->slots_of(parameter);
  return !slots.empty() && std::all_of(slots.begin(), slots.end(), [&](size_t slot) { return state_->updated[slot]; });
}

UpdateAtSeams::NoUpdate::NoUpdate(UpdateAtSeams& updates) : state_(*updates.state_) {
  if (state_.source != nullptr)
    throw Error(absl::StrCat(
        kWho, "::no_update: the gradients come from elsewhere, which decides what is final: use its no_sync()"));
  if (state_.held) throw Error(absl::StrCat(kWho, "::no_update: there is one already"));
  if (state_.kept.mid_step)
    throw Error(absl::StrCat(kWho, "::no_update: some blocks are updated already; call finish() before the next step"));
  state_.held = true;
}

UpdateAtSeams::NoUpdate::~NoUpdate() {
  state_.start_over_seams();
  state_.held = false;
}

}  // namespace rondo::optim
