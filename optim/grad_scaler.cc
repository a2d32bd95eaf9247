#include "rondo/optim/grad_scaler.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::amp {

namespace {

// In: whether a step of this iteration has overflowed, and Decision::skipped. Out: the first, now.
struct NoteOverflow {
  static constexpr size_t kIn = 2, kNumbers = 0, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& /*numbers*/) {
    return {scalar::maximum(in[0], in[1])};
  }
};

const double* written(Tensor& value) { return reinterpret_cast<const double*>(value.mutable_address()); }

// In and out: the scale, the good steps, the skipped iterations, whether this one has overflowed.
// Numbers: growth_factor, backoff_factor, growth_interval, the smallest and the largest scale.
struct UpdateScale {
  static constexpr size_t kIn = 4, kNumbers = 5, kOut = 4;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    using namespace scalar;
    const auto& [scale, good_steps, skipped, overflowed] = in;
    const auto& [growth, backoff, interval, smallest, largest] = numbers;
    const T zero = constant(scale, 0.0), one = constant(scale, 1.0);
    const auto bad = ne(overflowed, zero);
    const T reduced = scale * backoff, grown = scale * growth, counted = good_steps + one;
    const auto grows = le(interval, counted);
    const T after_good = select(logical_and(grows, le(grown, largest)), grown, scale);
    // A scale of 0 would make every gradient 0, and it could never grow again.
    return {select(bad, select(lt(reduced, smallest), smallest, reduced), after_good),
            select(logical_or(bad, grows), zero, counted), skipped + select(bad, one, zero), zero};
  }
};

}  // namespace

GradScaler::Values GradScaler::Values::of(double scale, int64_t good_steps, int64_t skipped, Device device) {
  const auto value = [device](auto number) { return Tensor::full({}, static_cast<double>(number), {kF64, device}); };
  return {value(scale), value(good_steps), value(skipped), value(0)};
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
  const optim::StepReport report = optim::Step::run(
      optimizer, options, [&](optim::LaunchQueue& queue, const optim::Decision* decision) {
        if (!options_.enabled) return;
        const double* overflowed = reinterpret_cast<const double*>(values_.overflowed.address());
        const auto pass = optim::scalar_pass(values_.scale.device(),
                                             optim::program_body<NoteOverflow>("note_overflow"));
        optim::add_call(queue.table(), *pass, {overflowed, &decision->skipped, overflowed}, nullptr);
        queue.add(pass);
      });
  if (options_.enabled) static_cast<void>(written(values_.overflowed));
  stepped_ = true;
  return report;
}

void GradScaler::update() {
  if (!stepped_)
    throw Error("GradScaler::update: no step() since the last update(); nothing is known of the gradients");
  if (!options_.enabled) {
    stepped_ = false;
    return;
  }
  const memory::Cause cause("", "GradScaler::update", {});
  const Device device = values_.scale.device();
  const double *scale = written(values_.scale), *good_steps = written(values_.good_steps),
               *skipped = written(values_.skipped), *overflowed = written(values_.overflowed);
  const Storage numbers = optim::numbers_on(
      device, {options_.growth_factor, options_.backoff_factor, static_cast<double>(options_.growth_interval),
               std::numeric_limits<float>::min(), std::numeric_limits<float>::max()});
  optim::call_program(device, optim::program_body<UpdateScale>("update_scale"),
                      {scale, good_steps, skipped, overflowed, scale, good_steps, skipped, overflowed},
                      optim::f64_of(numbers));
  stepped_ = false;
}

nn::StateDict GradScaler::state_dict() const {
  const Values copies = values_.cloned();
  return {
      {"scale", copies.scale}, {"growth_tracker", copies.good_steps.to(kI64)}, {"skipped", copies.skipped.to(kI64)}};
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
