#include "rondo/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::amp {

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  if (!(options.init_scale > 0 && std::isfinite(options.init_scale)))
    throw Error(absl::StrCat("GradScaler: init_scale must be positive and finite, got ", options.init_scale));
  if (!(options.growth_factor > 1) || !(options.backoff_factor > 0 && options.backoff_factor < 1))
    throw Error(absl::StrCat("GradScaler: growth_factor must be above 1 and backoff_factor between 0 and 1, got ",
                             options.growth_factor, " and ", options.backoff_factor));
  if (options.growth_interval < 1)
    throw Error(absl::StrCat("GradScaler: growth_interval must be at least 1, got ", options.growth_interval));
}

Tensor GradScaler::scale(TensorArg loss) const { return options_.enabled ? loss * scale_ : loss.tensor; }

optim::StepReport GradScaler::step(optim::Optimizer& optimizer, optim::StepOptions options) {
  stepped_ = true;
  if (!options_.enabled) return optimizer.step(options);
  options.grad_scale *= scale_;
  options.check_finite = true;
  const optim::StepReport report = optimizer.step(options);
  overflowed_ = overflowed_ || report.skipped;
  return report;
}

void GradScaler::update() {
  if (!stepped_)
    throw Error("GradScaler::update: no step() since the last update(); nothing is known of the gradients");
  const bool overflowed = std::exchange(overflowed_, false);
  stepped_ = false;
  if (!options_.enabled) return;
  if (overflowed) {
    ++skipped_;
    good_steps_ = 0;
    // A scale of 0 would make every gradient 0, and it could never grow again.
    scale_ = std::max(scale_ * options_.backoff_factor, std::numeric_limits<float>::min() * 1.0);
  } else if (++good_steps_ >= options_.growth_interval) {
    good_steps_ = 0;
    const double grown = scale_ * options_.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) scale_ = grown;
  }
}

nn::StateDict GradScaler::state_dict() const {
  return {{"scale", Tensor::scalar(scale_)},
          {"growth_tracker", Tensor::scalar(good_steps_)},
          {"skipped", Tensor::scalar(skipped_)}};
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
  scale_ = scale;
  good_steps_ = static_cast<int64_t>(good);
  skipped_ = static_cast<int64_t>(skipped);
}

}  // namespace rondo::amp
