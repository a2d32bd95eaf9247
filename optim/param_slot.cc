#include "rondo/optim/param_slot.h"

#include "rondo/optim/block8.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::optim {

Dims sizes_of(const StateSpec& spec, const Dims& param) {
  Dims sizes = param;
  if (spec.layout == Layout::kPerRow) sizes[sizes.rank() - 1] = 1;
  if (spec.layout == Layout::kPerColumn) sizes[sizes.rank() - 2] = 1;
  return sizes;
}

namespace {

// Smaller parameters (biases, norms) keep f32 states even with 8-bit states: their states are small, and 8 bits harm
// them most.
constexpr int64_t kMin8BitElements = 4096;

bool has_scales(StateFormat format, const StateSpec& spec, const Tensor& param) {
  return format == StateFormat::k8Bit && !spec.transient && spec.layout == Layout::kFull &&
         param.numel() >= kMin8BitElements;
}

// Makes an array whose elements are all `init.value`.
StateArray make_array(const StateInit& init, const StateSpec& spec, const Tensor& param) {
  StateArray array;
  const Dims sizes = sizes_of(spec, param.sizes());
  if (!has_scales(init.format, spec, param)) {
    const bool half = init.format == StateFormat::kBF16 && spec.layout == Layout::kFull;
    array.values = Tensor::full(sizes, init.value, {half ? kBF16 : compute_dtype(param.dtype()), param.device()});
    return array;
  }
  array.scales = Tensor::full({(param.numel() + kBlock8 - 1) / kBlock8}, init.value, {kF32, param.device()});
  const float v = static_cast<float>(init.value);
  const uint8_t code = low_byte(spec.nonnegative ? encode8<false>(v, inverse8(v)) : encode8<true>(v, inverse8(v)));
  array.values = Tensor::full(sizes, static_cast<int64_t>(code), {kU8, param.device()});
  return array;
}

}  // namespace

StepCount::StepCount(int64_t steps, Device device)
    : device(device),
      places_(Tensor::full({2}, static_cast<double>(steps), {kF64, device})),
      data_(reinterpret_cast<double*>(places_.mutable_address())) {}

void StateArray::locate() {
  values_data = values.defined() ? values.mutable_address() : nullptr;
  scales_data = scales.defined() ? scales.mutable_address() : nullptr;
}

ParamState ParamSlot::new_state(std::shared_ptr<StepCount> count) const {
  ParamState made;
  for (size_t k = 0; k < plan->states.size(); ++k) {
    if (plan->states[k].transient) continue;
    StateArray& array = made.arrays[k];
    array = make_array(init, plan->states[k], param);
    array.locate();
    for (const Tensor* kept : {&array.values, &array.scales})
      if (kept->defined()) kept->storage().set_purpose(Purpose::kStates);
  }
  made.steps = CountShare(std::move(count));
  return made;
}

void ParamSlot::make_master() {
  master = param.detach().to(kF32);
  master.storage().set_purpose(Purpose::kStates);
  master_data = master.mutable_address();
  master_of = Contents::of(param);
}

void ParamSlot::drop_master() {
  master = Tensor();
  master_data = nullptr;
  master_of = {};
}

void ParamSlot::refresh_master() {
  if (!master.defined() || master_of == Contents::of(param)) return;
  const Tensor rounded = param.detach();
  master.copy_(ops::where(master.to(param.dtype()) == rounded, master, rounded.to(kF32)));
  master_of = Contents::of(param);
}

void ParamSlot::make_average() {
  average = ops::cast(param.detach(), compute_dtype(param.dtype()));
  average.storage().set_purpose(Purpose::kStates);
  average_data = average.mutable_address();
  average_copied = Contents::of(param);
  average_moved = false;
}

void ParamSlot::refresh_average() {
  if (!average.defined() || average_moved || average_copied == Contents::of(param)) return;
  average.copy_(param.detach());
  average_copied = Contents::of(param);
}

void ParamSlot::refresh_copy() {
  if (!copy.defined() || copy_of == Contents::of(param)) return;
  copy.copy_(param.detach());
  copy_of = Contents::of(param);
}

}  // namespace rondo::optim
