#include "rondo/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::amp {

GradScaler::Values GradScaler::Values::of(double scale, int64_t good_steps, int64_t skipped, Device device) {
  const TensorOptions integer{kI64, device};
  return {Tensor::full({}, scale, {kF64, device}), Tensor::full({}, good_steps, integer),
          Tensor::full({}, skipped, integer), Tensor::full({}, int64_t{0}, integer)};
}
GradScaler::Values GradScaler::Values::cloned() const {
  return {scale.clone(), good_steps.clone(), skipped.clone(), overflowed.clone()};
}

GradScaler::GradScaler(const GradScaler& other)
    : options_(other.options_), values_(other.values_.cloned()), placed_(other.placed_), stepped_(other.stepped_) {}
GradScaler& GradScaler::operator=(const GradScaler& other) {
  options_ = other.options_;
  values_ = other.values_.cloned();
  placed_ = other.placed_;
  stepped_ = other.stepped_;
  return *this;
}

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), values_(Values::of(options.init_scale, 0, 0, default_device())) {
  if (!(options.init_scale > 0 && std::isfinite(options.init_scale)))
    throw Error(absl::StrCat("GradScaler: init_scale must be positive and finite, got ", options.init_scale));
  if (!(options.growth_factor > 1) || !(options.backoff_factor > 0 && options.backoff_factor < 1))
    throw Error(absl::StrCat("GradScaler: growth_factor must be above 1 and backoff_factor between 0 and 1, got ",
                             options.growth_factor, " and ", options.backoff_factor));
  if (options.growth_interval < 1)
    throw Error(absl::StrCat("GradScaler: growth_interval must be at least 1, got ", options.growth_interval));
}

void GradScaler::go_to(Device device) {
  const Device here = values_.scale.device();
  if (placed_ && !(device == here))
    throw Error(absl::StrCat("GradScaler: its scale is on ", rondo::to_string(here),
                             " and the loss or the parameters on ", rondo::to_string(device),
                             "; make a GradScaler for each device"));
  values_ = {values_.scale.to(device), values_.good_steps.to(device), values_.skipped.to(device),
             values_.overflowed.to(device)};
  placed_ = true;
}

Tensor GradScaler::scale(TensorArg loss) {
  if (!options_.enabled || !loss.tensor.defined()) return loss.tensor;
  go_to(loss.tensor.device(loss.where));
  // As a scalar operand: in f32 for 16-bit losses, whose range the scale may leave.
  const DType dtype = loss.tensor.dtype(), compute = compute_dtype(dtype);
  // A copy, because update() writes the scale and the tape reads this one.
  const Tensor factor = compute == kF64 ? values_.scale.clone() : values_.scale.to(compute);
  return (loss.tensor.to(compute, loss.where) * TensorArg(factor, loss.where)).to(dtype, loss.where);
}

optim::StepReport GradScaler::step(optim::Optimizer& optimizer, optim::StepOptions options) {
  if (options_.enabled) {
    go_to(optimizer.device());
    options.device_scale = values_.scale;
    options.check_finite = true;
  }
  const optim::StepReport report = optimizer.step(options);
  stepped_ = true;
  if (!options_.enabled) return report;
  const auto* decision = reinterpret_cast<const optim::Decision*>(report.decision().address());
  auto* overflowed = reinterpret_cast<int64_t*>(values_.overflowed.mutable_address());
  enqueue(values_.scale.device(), [decision, overflowed] {
    if (decision->go == optim::Decision::kSkipped) *overflowed = 1;
  });
  return report;
}

void GradScaler::update() {
  if (!stepped_)
    throw Error("GradScaler::update: no step() since the last update(); nothing is known of the gradients");
  stepped_ = false;
  if (!options_.enabled) return;
  const auto address = [](Tensor& value) { return value.mutable_address(); };
  const Device device = values_.scale.device();
  enqueue(device, [device, options = options_, scale = reinterpret_cast<double*>(address(values_.scale)),
                   good_steps = reinterpret_cast<int64_t*>(address(values_.good_steps)),
                   skipped = reinterpret_cast<int64_t*>(address(values_.skipped)),
                   overflowed = reinterpret_cast<int64_t*>(address(values_.overflowed))] {
    if (backend_of(device).failed(device.index)) return;
    if (std::exchange(*overflowed, 0) != 0) {
      ++*skipped;
      *good_steps = 0;
      // A scale of 0 would make every gradient 0, and it could never grow again.
      *scale = std::max(*scale * options.backoff_factor, std::numeric_limits<float>::min() * 1.0);
    } else if (++*good_steps >= options.growth_interval) {
      *good_steps = 0;
      const double grown = *scale * options.growth_factor;
      if (grown <= std::numeric_limits<float>::max()) *scale = grown;
    }
  });
}

nn::StateDict GradScaler::state_dict() const {
  const Values copies = values_.cloned();
  return {{"scale", copies.scale}, {"growth_tracker", copies.good_steps}, {"skipped", copies.skipped}};
}

void GradScaler::load_state_dict(const nn::StateDict& state) {
  nn::StateDictReport report;
  const auto number = [&](const char* name, DType dtype, double least) -> double {
    const auto found = state.find(name);
    if (found == state.end()) {
      report.missing.push_back(name);
      return 0;
    }
    const Tensor& value = found->second;
    if (value.dtype() == dtype && value.numel() == 1 && value.item() >= least && std::isfinite(value.item()))
      return value.item();
    report.mismatched.push_back(
        absl::StrCat(name, ": ", std::string(name_of(value.dtype())), rondo::to_string(value.sizes())));
    return 0;
  };
  const double scale = number("scale", kF64, std::numeric_limits<double>::min());
  const double good = number("growth_tracker", kI64, 0), skipped = number("skipped", kI64, 0);
  if (!report.missing.empty() || !report.mismatched.empty()) throw nn::StateDictError("GradScaler", report);
  values_ = Values::of(scale, static_cast<int64_t>(good), static_cast<int64_t>(skipped), values_.scale.device());
}

}  // namespace rondo::amp
