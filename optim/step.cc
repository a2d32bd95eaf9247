#include "rondo/optim/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/log.h"
#include "rondo/optim/norm.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step_programs.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/lowered.h"

namespace rondo::optim {
namespace {

// Throws Error if the model was converted after its first step, so that the state no longer fits the parameter's dtype.
void check_states(const Optimizer& optimizer, ParamSlot& slot, size_t i) {
  const Tensor& param = slot.param;
  const bool wide = compute_dtype(param.dtype()) == kF64;
  if (!slot.wants_master()) slot.drop_master();
  for (const Tensor* held : {&slot.state.arrays[0].values, &slot.average})
    if (held->defined() && wide != (held->dtype() == kF64))
      throw Error(absl::StrCat(optimizer.name(), ": ", slot_name(i), " is now ", std::string(name_of(param.dtype())),
                               ", its state ", std::string(name_of(held->dtype())),
                               "; convert the model before its first step"));
  if (param.dtype() == kF64 && slot.init.format != StateFormat::kFull)
    throw Error(absl::StrCat(optimizer.name(), ": ", slot_name(i), " is now f64; f64 state has no shorter format"));
  if (is_low_precision(param.dtype()) && !slot.init.masters)
    compile::log::warn_once(absl::StrCat(
        optimizer.name(), " updates ", std::string(name_of(param.dtype())),
        " parameters without f32 weights (masters = false): an update that is below half a unit in the last place of a "
        "parameter is lost, and so may be all of them"));
  slot.fits = param.dtype();
}

// Throws Error: the parameter of slot i, its gradient or its state is not on the device of slot 0.
[[noreturn]] void throw_two_devices(const Optimizer& optimizer, const ParamSlot& slot, size_t i) {
  const std::string here = to_string(slot.param.device());
  if (!(slot.param.device() == optimizer.device()))
    throw Error(absl::StrCat(optimizer.name(), ": ", slot_name(i), " is on ", here, " and ", slot_name(0), " on ",
                             to_string(optimizer.device()), "; the parameters of one optimizer are on one device"));
  if (const Device grad = slot.param.grad().device(); !(grad == optimizer.device()))
    throw Error(absl::StrCat(optimizer.name(), ": ", slot_name(i), " is on ", here, ", its gradient on ",
                             to_string(grad), "; move one with .to(Device)"));
  throw Error(absl::StrCat(optimizer.name(), ": ", slot_name(i), " is now on ", here, ", its state on ",
                           to_string(slot.state.steps->device),
                           "; move the model before its first step, or load the state into a new optimizer"));
}

BufferAverages::Joined joined_by(const Optimizer& optimizer, OptimizerState& state) {
  return {optimizer.name(), state.device(), state.average_decay, state.average_warmup, state.passes};
}

bool measures(const StepOptions& o) {
  return o.check_finite || o.grad_scale != 1 || o.device_scale.defined() || std::isfinite(o.max_norm);
}

// Raises the versions of the tensors that the pass writes: the parameter, its average, its copy and maybe its gradient.
// The tape compares these versions.
void open_for_writing(StepUpdate& u, bool zero_grad) {
  ParamSlot& slot = *u.slot;
  static_cast<void>(slot.param.mutable_address());
  for (const Tensor* written : {&slot.average, &u.copy})
    if (written->defined()) written->storage().bump_version();
  slot.copy_of = slot.master_of = {u.param, slot.param.impl()->storage.version()};
  slot.average_moved = true;
  if (zero_grad && !u.dense_grad.defined()) {
    Tensor grad = slot.param.grad();
    static_cast<void>(grad.mutable_address());
  }
}

}  // namespace

OptimizerState& Step::state_of(const Optimizer& optimizer) { return *optimizer.state_; }

void Step::check_options(const Optimizer& optimizer, const StepOptions& o) {
  const FloatingPointScope floating_point;  // a host may trap invalid operations, such as a comparison with NaN
  if (!(o.grad_scale > 0) || !std::isfinite(o.grad_scale))
    throw Error(absl::StrCat(optimizer.name(), ": grad_scale must be positive and finite, got ", o.grad_scale));
  if (!(o.max_norm >= 0))
    throw Error(absl::StrCat(optimizer.name(), ": max_norm must not be negative, got ", o.max_norm));
  const Tensor& scale = o.device_scale;
  if (scale.defined() && !(scale.dtype() == kF64 && scale.numel() == 1 && scale.device() == optimizer.device()))
    throw Error(absl::StrCat(optimizer.name(), ": device_scale must be one f64 on ", to_string(optimizer.device()),
                             ", got ", std::string(name_of(scale.dtype())), to_string(scale.sizes()), " on ",
                             to_string(scale.device())));
}

void Step::throw_no_gradients(const Optimizer& optimizer) {
  const auto& slots = state_of(optimizer).slots;
  if (std::none_of(slots.begin(), slots.end(), [](const ParamSlot& slot) { return slot.param.requires_grad(); }))
    throw Error(absl::StrCat(optimizer.name(), ": none of the ", slots.size(),
                             " parameters requires a gradient: they are frozen. Parameters that are made later, as an "
                             "adapter's, join by add_param_group(), or make the optimizer after them"));
  throw Error(absl::StrCat(optimizer.name(), ": none of the ", slots.size(),
                           " parameters has a gradient. Call backward() before the step, on a loss that depends on "
                           "them; a step that may find no gradients needs {.allow_no_gradients = true}"));
}

void Step::say_no_masters(const Optimizer& optimizer) {
  compile::log::warn_once(absl::StrCat(optimizer.name(),
                                       ": the loaded state has no f32 weights of 16-bit parameters (an earlier version "
                                       "or masters = false has saved it); they are made from the parameters"));
}

Step::Step(Optimizer& optimizer) : optimizer_(optimizer), state_(state_of(optimizer)) {
  if (state_.averages_swapped)
    throw Error(absl::StrCat(optimizer.name(),
                             "::step: an AverageScope has put the averages into the parameters; end it first"));
}

StepReport Optimizer::step(const StepOptions& options, std::source_location where) try {
  return Step::run(*this, options, where);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Optimizer::step");
}

StepReport Step::run(Optimizer& optimizer, const StepOptions& options, std::source_location where, JoinedWork joined) {
  const memory::Cause cause("a step of ", optimizer.name(), {});
  const FloatingPointScope floating_point;
  check_options(optimizer, options);
  const RecordingPause pause("Optimizer::step() is called", where);
  OptimizerState& state = state_of(optimizer);
  if (state.at_seams)
    throw Error(absl::StrCat(optimizer.name(),
                             ": its parameters are updated at seams; end the step with UpdateAtSeams::finish(), not "
                             "with step() (update_at_seams.h)"));
  const NoGrad off;
  // With shards, a process may have no gradient where others have some.
  if (state.shards != nullptr) state.shards->before_step(options.allow_no_gradients);
  Step step(optimizer);
  step.updates_.reserve(state.slots.size());
  for (size_t i = 0; i < state.slots.size(); ++i) step.collect(i);
  if (state.shards == nullptr) {
    step.check_any_gradient();
    if (step.updates_.empty() && !options.allow_no_gradients) throw_no_gradients(optimizer);
  }
  UpdateListener* const listener = step.listener();
  std::optional<UpdateFacts> facts;
  if (listener != nullptr) facts = facts_of(optimizer, options);
  step.decide(options);
  BufferAverages* const buffers = (state.shards != nullptr ? state.shards->has_gradients() : !step.updates_.empty())
                                      ? state.buffers.get()
                                      : nullptr;
  step.update(options.zero_grad, [&](LaunchQueue& queue, const Decision* decision) {
    joined(queue, decision);
    if (buffers != nullptr) buffers->queue(joined_by(optimizer, state), queue, decision);
  });
  if (buffers != nullptr) buffers->advance();
  if (!step.updates_.empty()) state.passes.note_step();
  if (state.shards != nullptr) state.shards->after_step();
  if (facts) listener->on_update(std::move(*facts));
  return step.measured_ ? StepReport(step.decision_) : StepReport();
}

bool Step::collect(size_t i) {
  ParamSlot& slot = state_.slots[i];
  const Tensor& param = slot.param;
  const Tensor& grad = param.grad();
  if (!grad.defined()) return false;
  if (grad.dtype() != param.dtype() || !(grad.sizes() == param.sizes()))
    throw Error(absl::StrCat(optimizer_.name(), ": ", slot_name(i), " is ", std::string(name_of(param.dtype())),
                             to_string(param.sizes()), ", its gradient ", std::string(name_of(grad.dtype())),
                             to_string(grad.sizes())));
  const Device device = state_.slots[0].param.impl()->device;
  const StepCount* count = slot.state.steps.count().get();
  if (!(param.impl()->device == device && grad.impl()->device == device) ||
      (count != nullptr && !(count->device == device))) [[unlikely]]
    throw_two_devices(optimizer_, slot, i);
  if (slot.fits != param.dtype()) check_states(optimizer_, slot, i);
  StepUpdate& update = updates_.emplace_back();
  update.slot = &slot;
  if (!grad.is_contiguous()) update.dense_grad = grad.detach().contiguous();
  update.param = const_cast<std::byte*>(param.address());
  update.grad = (update.dense_grad.defined() ? update.dense_grad : grad).address();
  update.copy = slot.copy;
  if (const std::optional<DType> used = amp::copy_in_use(param); used && !update.copy.defined())
    update.copy = amp::copy_to_write(param, *used);
  return true;
}

UpdateListener* Step::listener() const {
  if (state_.shards != nullptr) return &state_.shards->listener();
  for (const StepUpdate& u : updates_)
    if (UpdateListener* const found = autograd::update_listener(u.slot->param); found != nullptr) return found;
  return nullptr;
}

// Throws Error if a gradient is missing because an averager still holds it.
void Step::check_any_gradient() const {
  if (updates_.size() == state_.slots.size()) return;
  for (size_t i = 0; i < state_.slots.size(); ++i) {
    const Tensor& param = state_.slots[i].param;
    if (param.grad().defined()) continue;
    if (const char* holder = autograd::gradient_claim(param, GradientClaim::kAverager); holder != nullptr)
      throw Error(absl::StrCat(optimizer_.name(), ": ", slot_name(i), " has no gradient, because ", holder,
                               " averages it: call its finish() after backward() and before step()"));
  }
}

void Step::decide(const StepOptions& options) {
  const Device device = state_.device();
  static_assert(sizeof(Decision) == 4 * sizeof(double));
  decision_ = Tensor::empty({4}, {kF64, device});
  auto* d = reinterpret_cast<Decision*>(decision_.mutable_address());
  measured_ = measures(options);
  if (measured_ && (state_.skipped == nullptr || !(state_.skipped->device == device)))
    state_.skipped = std::make_unique<StepCount>(optimizer_.skipped_steps(), device);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Storage kept = numbers_on(device, {options.grad_scale, options.max_norm, /*no device_scale:*/ 1, kNaN});
  const double* numbers = f64_of(kept);
  // The Decision starts with zeros: they remain if a kernel has found its data wrong, because then nothing below runs.
  backend_of(device).fill(device.index, d, 0, sizeof(Decision));
  if (!measured_) {
    call_program(device, decide_unmeasured(), {&d->norm, &d->factor, &d->updates, &d->skipped}, numbers + 3);
    return;
  }
  const Tensor sum = Tensor::empty({}, {kF64, device});
  auto* squares = reinterpret_cast<double*>(const_cast<std::byte*>(sum.address()));
  std::vector<NormOperand> operands;
  operands.reserve(updates_.size());
  for (const StepUpdate& u : updates_) operands.push_back({u.grad, u.slot->param.dtype(), u.numel()});
  enqueue_sum_of_squares(device, operands, squares);
  if (state_.shards != nullptr) state_.shards->sum_over_ranks(sum);
  const double* scale = options.device_scale.defined() ? reinterpret_cast<const double*>(options.device_scale.address())
                                                       : numbers + 2;
  call_program(
      device, decide_measured(),
      {squares, scale, state_.skipped->now(), &d->norm, &d->factor, &d->updates, &d->skipped, state_.skipped->next()},
      numbers);
}

void Step::average_buffers(Optimizer& optimizer) {
  OptimizerState& state = state_of(optimizer);
  BufferAverages* const buffers = state.buffers.get();
  if (buffers == nullptr) return;
  const FloatingPointScope floating_point;
  const NoGrad off;
  Step step(optimizer);
  step.decide({});
  step.update(/*zero_grad=*/false, [&](LaunchQueue& queue, const Decision* decision) {
    buffers->queue(joined_by(optimizer, state), queue, decision);
  });
  buffers->advance();
}

void Step::update(bool zero_grad, JoinedWork joined) {
  StepLaunches launches(optimizer_, state_, updates_, decision_);
  if (!updates_.empty()) launches.prepare(zero_grad);
  joined(state_.queue, launches.decided());
  state_.queue.make_ready();
  // Nothing below fails for lack of memory.
  for (StepUpdate& u : updates_) open_for_writing(u, zero_grad);
  if (measured_) state_.skipped->advance();
  launches.advance_counts();
  state_.queue.submit();
  for (StepUpdate& u : updates_) {
    if (u.copy.defined()) amp::set_copy(u.slot->param, u.copy);
    // The pass has zeroed the copy that it read. A copy was made of a gradient that is not contiguous (its elements may
    // share memory: stride 0), or that two parameters share. The copy now replaces this gradient.
    if (zero_grad && u.dense_grad.defined()) u.slot->param.set_grad(u.dense_grad);
  }
}

}  // namespace rondo::optim
