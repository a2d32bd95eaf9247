#include "rondo/optim/optimizer.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "rondo/optim/block8.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::optim {

Dims sizes_of(const StateSpec& spec, const Dims& param) {
  Dims sizes = param;
  if (spec.layout == Layout::kPerRow) sizes[sizes.rank() - 1] = 1;
  if (spec.layout == Layout::kPerColumn) sizes[sizes.rank() - 2] = 1;
  return sizes;
}

namespace {

// Parameters below this size keep their states in f32: they weigh nothing, and they are the sensitive ones (biases,
// norms).
constexpr int64_t kMin8BitElements = 4096;

bool has_scales(StateFormat format, const StateSpec& spec, const Tensor& param) {
  return format == StateFormat::k8Bit && !spec.transient && spec.layout == Layout::kFull &&
         param.numel() >= kMin8BitElements;
}

// A state that is `value` everywhere.
Tensor make_state(StateFormat format, const StateSpec& spec, const Tensor& param, double value, Tensor& scales) {
  const Dims sizes = sizes_of(spec, param.sizes());
  if (!has_scales(format, spec, param)) {
    const bool half = format == StateFormat::kBF16 && spec.layout == Layout::kFull;
    return Tensor::full(sizes, value, {half ? kBF16 : compute_dtype(param.dtype()), param.device()});
  }
  scales = Tensor::full({(param.numel() + kBlock8 - 1) / kBlock8}, value, {kF32, param.device()});
  Tensor codes = Tensor::zeros(sizes, {kU8, param.device()});
  const float v = static_cast<float>(value);
  std::memset(codes.raw_mutable_data(),
              low_byte(spec.nonnegative ? encode8<false>(v, inverse8(v)) : encode8<true>(v, inverse8(v))),
              static_cast<size_t>(codes.numel()));
  return codes;
}

}  // namespace

void Optimizer::add_group(std::span<const Tensor> params, const UpdatePlan& plan, GroupSpec spec) {
  add_group(
      params, [&](const Tensor&) -> const UpdatePlan& { return plan; }, spec);
}

void Optimizer::add_group(std::span<const Tensor> params, PlanOf plan_of, GroupSpec spec) {
  const int group = n_groups_++;
  for (const Tensor& param : params) {
    const auto fail = [&](std::string_view why) {
      throw Error(absl::StrCat("optimizer: ", slot_name(slots_.size()), " ", std::string(why)));
    };
    if (!param.defined()) fail("is undefined");
    if (!is_floating(param.dtype()))
      fail(absl::StrCat("is ", std::string(name_of(param.dtype())), ", not floating point"));
    if (!param.is_leaf()) fail("is the result of an op, not a leaf");
    if (!param.is_contiguous()) fail("is not contiguous; make it so with .contiguous() before it becomes a parameter");
    if (param.dtype() == kF64 && spec.format != StateFormat::kFull)
      fail("is f64: its states are too, and have no shorter format");
    Slot slot;
    slot.param = param;
    slot.group = group;
    slot.plan = &plan_of(param);
    slot.step = Tensor::zeros({}, {kI64});
    slot.step_at = slot.step.mutable_data<int64_t>();
    for (const StateSpec& state : slot.plan->states) {
      Tensor& made = slot.states.emplace_back();
      Tensor& scales = slot.scales.emplace_back();
      if (!state.transient) made = make_state(spec.format, state, param, spec.initial_state, scales);
      const size_t k = slot.states.size() - 1;
      if (made.defined()) slot.states_at[k] = made.raw_mutable_data();
      if (scales.defined()) slot.scales_at[k] = scales.raw_mutable_data();
      for (const Tensor* kept : {&made, &scales})
        if (kept->defined()) kept->storage().set_purpose(Purpose::kStates);
    }
    if (slot.plan->matrices) {
      slot.width = param.size(-1);
      slot.matrices = param.numel() == 0 ? 0 : param.numel() / (param.size(-1) * param.size(-2));
    }
    slots_.push_back(std::move(slot));
  }
  std::vector<const TensorImpl*> all;
  for (const Slot& slot : slots_) all.push_back(slot.param.impl());
  std::sort(all.begin(), all.end());
  if (std::adjacent_find(all.begin(), all.end()) != all.end())
    throw Error("optimizer: a parameter is given twice; parameters() lists tied ones once");
}

std::string Optimizer::slot_name(size_t i) const { return absl::StrCat("parameter ", i); }

void Optimizer::zero_grad(bool set_to_none) {
  for (Slot& slot : slots_) slot.param.zero_grad(set_to_none);
}

double& Optimizer::option(int group, const char* wanted) const {
  if (group < 0 || group >= n_groups_)
    throw Error(absl::StrCat(name(), ": group ", group, " of ", n_groups_, " does not exist"));
  double* found = nullptr;
  const_cast<Optimizer*>(this)->visit_options(group, [&](const char* option_name, double& value) {
    if (std::string_view(option_name) == wanted) found = &value;
  });
  invariant(found != nullptr, "an optimizer lacks an option");
  return *found;
}

double Optimizer::lr(int group) const { return option(group, "lr"); }
void Optimizer::set_lr(int group, double lr) {
  check_whole("set_lr");
  option(group, "lr") = lr;
}
void Optimizer::set_lr(double lr) {
  for (int group = 0; group < n_groups_; ++group) set_lr(group, lr);
}

// What all parameters of a step share cannot change between the updates of two seams.
void Optimizer::check_whole(const char* what) const {
  if (half_made_)
    throw Error(absl::StrCat(name(), "::", what,
                             ": a step is half made, some blocks are updated and others not; end it by "
                             "UpdateAtSeams::finish(), or abandon() after an exception"));
}

void Optimizer::track_average(AverageOptions options) {
  check_whole("track_average");
  set_average_decay(options.decay);
  if (averaging_) return;
  const NoGrad off;
  averaging_ = true;
  for (Slot& slot : slots_) {
    slot.average = ops::cast(slot.param.detach(), compute_dtype(slot.param.dtype()));
    slot.average_at = slot.average.raw_mutable_data();
    slot.averaged = Seen::of(slot.param);
    slot.moves = false;
    slot.average.storage().set_purpose(Purpose::kStates);
  }
  buckets_.clear();
}

void Optimizer::set_average_decay(double decay) {
  check_whole("set_average_decay");
  if (!(decay >= 0 && decay <= 1))
    throw Error(absl::StrCat(name(), ": an average's decay must be in [0, 1], got ", decay));
  average_decay_ = decay;
}

// Before its first step an average is what its parameter is.
void Optimizer::refresh_average(Slot& slot) {
  const Seen now = Seen::of(slot.param);
  if (!slot.average.defined() || slot.moves || slot.averaged == now) return;
  slot.average.copy_(slot.param.detach());
  slot.averaged = now;
}

// What follows the parameters, where somebody else has written those.
void Optimizer::refresh() const {
  const NoGrad off;
  for (Slot& slot : const_cast<Optimizer*>(this)->slots_) {
    refresh_average(slot);
    const Seen now = Seen::of(slot.param);
    if (!slot.copy.defined() || slot.copied == now) continue;
    slot.copy.copy_(slot.param.detach());
    slot.copied = now;
  }
}

std::vector<Tensor> Optimizer::averages() const {
  refresh();
  std::vector<Tensor> list;
  for (const Slot& slot : slots_) list.push_back(slot.average);
  return list;
}

void Optimizer::keep_copies(DType dtype) {
  check_whole("keep_copies");
  if (!is_low_precision(dtype))
    throw Error(absl::StrCat(name(), ": copies of the parameters are bf16 or f16, not ", std::string(name_of(dtype))));
  const NoGrad off;
  for (Slot& slot : slots_) {
    slot.copy = ops::cast(slot.param.detach(), dtype);
    slot.copied = Seen::of(slot.param);
  }
  buckets_.clear();
}

std::vector<Tensor> Optimizer::copies() const {
  refresh();
  std::vector<Tensor> list;
  for (const Slot& slot : slots_) list.push_back(slot.copy);
  return list;
}

nn::StateDict Optimizer::state_dict() const {
  check_whole("state_dict");
  refresh();
  nn::StateDict state;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const std::string prefix = absl::StrCat("state.", i, ".");
    state[prefix + "step"] = slot.step.detach();
    for (size_t k = 0; k < slot.states.size(); ++k) {
      const StateSpec& spec = slot.plan->states[k];
      if (spec.transient) continue;
      state[prefix + spec.name] = slot.states[k].detach();
      if (slot.scales[k].defined()) state[absl::StrCat(prefix, spec.name, ".scale")] = slot.scales[k].detach();
    }
    if (averaging_) state[prefix + "average"] = slot.average.detach();
  }
  for (int group = 0; group < n_groups_; ++group)
    const_cast<Optimizer*>(this)->visit_options(group, [&](const char* option_name, double& value) {
      state[absl::StrCat("group.", group, ".", option_name)] = Tensor::scalar(value);
    });
  return state;
}

void Optimizer::load_state_dict(const nn::StateDict& state) {
  check_whole("load_state_dict");
  std::vector<nn::NamedTensor> targets;
  // Options are scalars of ours: they are loaded into copies, then taken over.
  for (const auto& [tensor_name, tensor] : state_dict()) targets.push_back({tensor_name, tensor});
  nn::load_tensors(targets, state, true, name());
  nn::StateDict loaded;
  for (const auto& [tensor_name, tensor] : targets) loaded[tensor_name] = tensor;
  for (int group = 0; group < n_groups_; ++group)
    visit_options(group, [&](const char* option_name, double& value) {
      value = loaded.at(absl::StrCat("group.", group, ".", option_name)).item();
    });
  for (Slot& slot : slots_) slot.moves = true;  // an average of its own, whatever is loaded into the model later
}

}  // namespace rondo::optim
