#include "rondo/optim/update_at_seams.h"

#include <algorithm>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/recorder.h"

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

UpdateAtSeams::UpdateAtSeams(Optimizer& optimizer, UpdateAtSeamsOptions options, GradientSource* source)
    : optimizer_(optimizer), options_(options), source_(source), updated_(optimizer.slots_.size()) {
  check(options.step);
  optimizer.check_options(options.step);
  if (optimizer.at_seams_) throw Error(absl::StrCat(kWho, ": this ", optimizer.name(), " has one already"));
  for (size_t i = 0; i < optimizer.slots_.size(); ++i) slot_of_[optimizer.slots_[i].param.impl()] = i;
}

UpdateAtSeams::UpdateAtSeams(nn::ModuleBase& model, Optimizer& optimizer, UpdateAtSeamsOptions options)
    : UpdateAtSeams(optimizer, options, nullptr) {
  std::vector<Tensor> parameters;
  for (const Tensor& p : model.parameters())
    if (p.requires_grad() && slot_of_.contains(p.impl())) parameters.push_back(p);
  if (parameters.empty())
    throw Error(
        absl::StrCat(kWho, ": this ", optimizer.name(), " has no parameter of the model that requires a gradient"));
  for (const Tensor& p : parameters)
    if (const char* other = autograd::gradient_claim(p, GradientClaim::kChanges); other != nullptr)
      throw Error(absl::StrCat(
          kWho, ": ", other,
          " averages these gradients after their seams; make it from that: UpdateAtSeams(ddp, optimizer)"));
  claim(parameters);
  // Before those of the seams: when a gradient is final for the first time, its parameter is not yet updated.
  for (const Tensor& p : parameters)
    hooks_.emplace_back(
        p, autograd::on_accumulated(p, [this, slot = slot_of_.at(p.impl())] {
          if (updated_[slot])
            throw Error(absl::StrCat(
                kWho, ": the gradient of ", optimizer_.slot_name(slot), " of ", optimizer_.name(),
                " changed after its update; call finish() once per step (after an exception: abandon()), put all "
                "but the last backward of a step under no_update(), and checkpoint no two uses of one parameter"));
        }));
  seams_ = std::make_unique<Seams>(model, [this](const Seam& seam) {
    if (!listening_ || held_) return;
    std::vector<size_t> slots;
    for (const Tensor& p : seam.parameters)
      if (const auto slot = slot_of_.find(p.impl()); slot != slot_of_.end()) slots.push_back(slot->second);
    update(slots);
  });
}

UpdateAtSeams::UpdateAtSeams(GradientSource& source, Optimizer& optimizer, UpdateAtSeamsOptions options)
    : UpdateAtSeams(optimizer, options, &source) {
  std::vector<Tensor> parameters;
  for (const ParamSlot& slot : optimizer.slots_)
    if (slot.param.requires_grad()) parameters.push_back(slot.param);
  claim(parameters);
  listener_ = source.on_final([this](std::span<const Tensor> final_ones) {
    std::vector<size_t> slots;
    for (const Tensor& p : final_ones)
      if (const auto slot = slot_of_.find(p.impl()); slot != slot_of_.end()) slots.push_back(slot->second);
    update(slots);
  });
}

UpdateAtSeams::~UpdateAtSeams() {
  seams_.reset();
  if (source_ != nullptr) source_->remove_on_final(listener_);
  for (const auto& [parameter, id] : hooks_) autograd::remove_on_accumulated(parameter, id);
  let_go();
  optimizer_.at_seams_ = optimizer_.mid_step_ = false;
}

// The destructor lets go also where a constructor fails after this.
void UpdateAtSeams::claim(std::span<const Tensor> parameters) {
  for (const Tensor& p : parameters) {
    autograd::claim_gradient(p, GradientClaim::kUsesUp, kWho);
    claimed_.push_back(p);
  }
  optimizer_.at_seams_ = true;
}

void UpdateAtSeams::let_go() {
  for (const Tensor& p : claimed_) autograd::unclaim_gradient(p, GradientClaim::kUsesUp);
  claimed_.clear();
}

void UpdateAtSeams::update(std::span<const size_t> slots) {
  const NoGrad off;
  std::vector<Optimizer::Update> updates;
  std::vector<size_t> chosen;
  for (size_t slot : slots) {
    const size_t before = updates.size();
    if (!updated_[slot]) optimizer_.collect(slot, updates);
    if (updates.size() > before) chosen.push_back(slot);
  }
  if (updates.empty()) return;
  optimizer_.update(updates, optimizer_.decide(updates, {}), options_.step.zero_grad,
                    [](LaunchQueue&, const Decision*) {});
  optimizer_.mid_step_ = true;
  for (size_t slot : chosen) {
    updated_[slot] = true;
    if (options_.drop_grads && !options_.step.zero_grad) optimizer_.slots_[slot].param.set_grad(Tensor());
  }
  report_.at_seams += static_cast<int64_t>(chosen.size());
}

// Seams that were not reached come now, in vain.
void UpdateAtSeams::start_over_seams() {
  if (!seams_) return;
  listening_ = false;
  const absl::Cleanup again = [this] { listening_ = true; };
  seams_->finish();
}

UpdateReport UpdateAtSeams::end_step() {
  start_over_seams();
  report_.without_gradient = std::count(updated_.begin(), updated_.end(), false);
  updated_.assign(updated_.size(), false);
  optimizer_.stepped_ = optimizer_.stepped_ || optimizer_.mid_step_;
  optimizer_.mid_step_ = false;
  return std::exchange(report_, {});
}

UpdateReport UpdateAtSeams::finish() {
  if (held_) throw Error(absl::StrCat(kWho, "::finish: under no_update(); end its scope before the last backward"));
  if (source_ != nullptr) source_->check_finished();
  const RecordingPause pause("UpdateAtSeams::finish() is called", std::source_location::current());
  std::vector<size_t> all(updated_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const int64_t before = report_.at_seams;
  update(all);
  report_.at_end = std::exchange(report_.at_seams, before) - before;
  const UpdateReport report = end_step();
  if (report.at_seams + report.at_end == 0 && !options_.step.allow_no_gradients) optimizer_.throw_no_gradients();
  return report;
}

UpdateReport UpdateAtSeams::abandon() {
  if (source_ != nullptr) source_->check_finished();
  for (size_t i = 0; i < updated_.size(); ++i)
    if (!updated_[i]) optimizer_.slots_[i].param.set_grad(Tensor());
  return end_step();
}

bool UpdateAtSeams::is_updated(const Tensor& parameter) const {
  const auto slot = slot_of_.find(parameter.impl());
  return slot != slot_of_.end() && updated_[slot->second];
}

UpdateAtSeams::NoUpdate::NoUpdate(UpdateAtSeams& updates) : updates_(updates) {
  if (updates.source_ != nullptr)
    throw Error(absl::StrCat(
        kWho, "::no_update: the gradients come from elsewhere, which decides what is final: use its no_sync()"));
  if (updates.held_) throw Error(absl::StrCat(kWho, "::no_update: there is one already"));
  if (updates.optimizer_.mid_step_)
    throw Error(absl::StrCat(kWho, "::no_update: some blocks are updated already; call finish() before the next step"));
  updates.held_ = true;
}

UpdateAtSeams::NoUpdate::~NoUpdate() {
  updates_.start_over_seams();
  updates_.held_ = false;
}

}  // namespace rondo::optim
