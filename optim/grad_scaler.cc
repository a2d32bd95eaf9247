#include "rondo/optim/grad_scaler.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/optim/formula_code.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::amp {

namespace {

// Records an overflow. In: whether an earlier step of this iteration has overflowed, and Decision::skipped. Out: the
// new value of the first.
struct NoteOverflow {
  static constexpr size_t kIn = 2, kNumbers = 0, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& /*numbers*/) {
    return {scalar::maximum(in[0], in[1])};
  }
};

const double* written(Tensor& value) { return reinterpret_cast<const double*>(value.mutable_address()); }

// Computes the next scale. In and out: the scale, the good steps, the skipped iterations, whether this iteration has
// overflowed. Numbers: growth_factor, backoff_factor, growth_interval, the smallest and the largest scale.
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

// All values are f64 scalars on one device.
struct GradScaler::State {
  Tensor scale, good_steps, skipped;  // good_steps: steps since the scale changed
  Tensor overflowed;                  // 1 if a step of this iteration was skipped
  bool placed = false;                // the first loss or step has decided on which device the values are
  bool stepped = false;               // a step was made in this iteration

  static State of(double scale, int64_t good_steps, int64_t skipped, Device device) {
    const auto value = [device](auto number) { return Tensor::full({}, static_cast<double>(number), {kF64, device}); };
    return {value(scale), value(good_steps), value(skipped), value(0)};
  }
  State cloned() const {
    return {scale.clone(), good_steps.clone(), skipped.clone(), overflowed.clone(), placed, stepped};
  }
  void go_to(Device device) {
    const Device here = scale.device();
    if (placed && !(device == here))
      throw Error(absl::StrCat("GradScaler: its scale is on ", rondo::to_string(here),
                               " and the loss or the parameters on ", rondo::to_string(device),
                               "; make a GradScaler for each device"));
    *this = {scale.to(device), good_steps.to(device), skipped.to(device), overflowed.to(device), true, stepped};
  }
};

GradScaler::GradScaler(const GradScaler& other) try
    : options_(other.options_), state_(std::make_unique<State>(other.state_->cloned())) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler");
}
GradScaler& GradScaler::operator=(const GradScaler& other) {
  *state_ = other.state_->cloned();
  options_ = other.options_;
  return *this;
}
GradScaler::~GradScaler() = default;

double GradScaler::get_scale() const { return options_.enabled ? state_->scale.item() : 1; }
int64_t GradScaler::skipped() const { return static_cast<int64_t>(state_->skipped.item()); }

namespace {
void check(const GradScalerOptions& options) {
  const FloatingPointScope floating_point;
  if (!(options.init_scale > 0 && std::isfinite(options.init_scale)))
    throw Error(absl::StrCat("GradScaler: init_scale must be positive and finite, got ", options.init_scale));
  if (!(options.growth_factor > 1 && std::isfinite(options.growth_factor)) ||
      !(options.backoff_factor > 0 && options.backoff_factor < 1))
    throw Error(absl::StrCat("GradScaler: growth_factor must be above 1 and backoff_factor between 0 and 1, got ",
                             options.growth_factor, " and ", options.backoff_factor));
  if (options.growth_interval < 1)
    throw Error(absl::StrCat("GradScaler: growth_interval must be at least 1, got ", options.growth_interval));
}
}  // namespace

GradScaler::GradScaler(GradScalerOptions options) try
    : options_(options), state_(std::make_unique<State>(State::of(options.init_scale, 0, 0, default_device()))) {
  check(options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler");
}

Tensor GradScaler::scale(TensorArg loss) try {
  if (!loss.tensor.defined()) throw Error("GradScaler::scale: the loss is undefined");
  if (!options_.enabled) return loss.tensor;
  state_->go_to(loss.tensor.device(loss.where));
  // The product of a 16-bit loss is computed in f32: the scale may be outside the range of 16 bits.
  const DType dtype = loss.tensor.dtype(), compute = compute_dtype(dtype);
  // A copy, because update() writes the scale and the tape reads this one.
  const Tensor factor = compute == kF64 ? state_->scale.clone() : state_->scale.to(compute);
  return (loss.tensor.to(compute, loss.where) * TensorArg(factor, loss.where)).to(dtype, loss.where);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler::scale");
}

optim::StepReport GradScaler::step(optim::Optimizer& optimizer, optim::StepOptions options,
                                   std::source_location where) try {
  if (options_.enabled) {
    state_->go_to(optimizer.device());
    options.device_scale = state_->scale;
    options.check_finite = true;
  }
  const optim::StepReport report = optim::Step::run(
      optimizer, options, where, [&](optim::LaunchQueue& queue, const optim::Decision* decision) {
        if (!options_.enabled) return;
        const double* overflowed = reinterpret_cast<const double*>(state_->overflowed.address());
        const auto pass = optim::scalar_pass(state_->scale.device(),
                                             optim::program_body<NoteOverflow>("note_overflow"));
        optim::add_call(queue.table(), *pass, {overflowed, &decision->skipped, overflowed}, nullptr);
        queue.add(pass);
      });
  if (options_.enabled) static_cast<void>(written(state_->overflowed));
  state_->stepped = true;
  return report;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler::step");
}

void GradScaler::update() try {
  if (!state_->stepped)
    throw Error("GradScaler::update: no step() since the last update(); nothing is known of the gradients");
  if (!options_.enabled) {
    state_->stepped = false;
    return;
  }
  const memory::Cause cause("", "GradScaler::update", {});
  const FloatingPointScope floating_point;
  const Device device = state_->scale.device();
  const double *scale = written(state_->scale), *good_steps = written(state_->good_steps),
               *skipped = written(state_->skipped), *overflowed = written(state_->overflowed);
  const Storage numbers = optim::numbers_on(
      device, {options_.growth_factor, options_.backoff_factor, static_cast<double>(options_.growth_interval),
               std::numeric_limits<float>::min(), std::numeric_limits<float>::max()});
  optim::call_program(device, optim::program_body<UpdateScale>("update_scale"),
                      {scale, good_steps, skipped, overflowed, scale, good_steps, skipped, overflowed},
                      optim::f64_of(numbers));
  state_->stepped = false;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler::update");
}

nn::StateDict GradScaler::state_dict() const try {
  const State copies = state_->cloned();
  return {{"scale", copies.scale},
          {"growth_factor", Tensor::full({}, options_.growth_factor, {kF64, kCPU})},
          {"backoff_factor", Tensor::full({}, options_.backoff_factor, {kF64, kCPU})},
          {"growth_interval", Tensor::full({}, options_.growth_interval, {kI64, kCPU})},
          {"growth_tracker", copies.good_steps.to(kI64)},
          {"skipped", copies.skipped.to(kI64)}};
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler::state_dict");
}

void GradScaler::load_state_dict(const nn::StateDict& state) try {
  nn::StateDictReport report;
  const auto number = [&](const char* name, DType dtype, double least) -> double {
    const auto found = state.find(name);
    if (found == state.end()) {
      report.missing.push_back(name);
      return 0;
    }
    const Tensor& value = found->second;
    if (value.defined() && value.dtype() == dtype && value.numel() == 1 && value.item() >= least &&
        std::isfinite(value.item()))
      return value.item();
    report.mismatched.push_back(
        value.defined() ? absl::StrCat(name, ": ", std::string(name_of(value.dtype())), rondo::to_string(value.sizes()))
                        : absl::StrCat(name, ": undefined"));
    return 0;
  };
  const double scale = number("scale", kF64, std::numeric_limits<double>::min());
  const double good = number("growth_tracker", kI64, 0), skipped = number("skipped", kI64, 0);
  GradScalerOptions options = options_;
  const auto option = [&](const char* name, DType dtype, auto& value) {
    const size_t before = report.mismatched.size();
    if (!state.contains(name)) return;
    number(name, dtype, 0);
    if (report.mismatched.size() == before) value = state.at(name).item<std::remove_reference_t<decltype(value)>>();
  };
  option("growth_factor", kF64, options.growth_factor);
  option("backoff_factor", kF64, options.backoff_factor);
  option("growth_interval", kI64, options.growth_interval);
  if (report.empty()) {
    try {
      check(options);
    } catch (const Error& error) {
      report.mismatched.push_back(error.what());
    }
  }
  if (!report.empty()) throw nn::StateDictError("GradScaler", report);
  options_ = options;
  State loaded = State::of(scale, static_cast<int64_t>(good), static_cast<int64_t>(skipped), state_->scale.device());
  loaded.placed = state_->placed;
  loaded.stepped = state_->stepped;
  *state_ = std::move(loaded);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("GradScaler::load_state_dict");
}

}  // namespace rondo::amp
