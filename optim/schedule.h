// Learning-rate schedules: functions of the step, which counts from 0. Their values are PyTorch's.
//
//   const optim::CosineWithWarmup schedule{.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 100, .decay_steps = 2000};
//   for (int64_t step = 0; step < 2000; ++step) { optimizer.set_lr(schedule(step)); ... }
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#pragma GCC visibility push(default)
namespace rondo::optim {

// Returns a value that goes from a to b along half a cosine wave while `share` goes from 0 to 1.
inline double cosine_between(double a, double b, double share) {
  return b + (a - b) / 2 * (1 + std::cos(std::numbers::pi * share));
}

struct Constant {
  double lr = 1e-3;
  double operator()(int64_t /*step*/) const { return lr; }
};

// Warm-up or linear decay: from lr * start_factor to lr * end_factor in `steps` steps, then constant (LinearLR).
struct Linear {
  double lr = 1e-3;
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  int64_t steps = 5;
  double operator()(int64_t step) const {
    const double share = steps == 0 ? 1.0 : static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
    return lr * (start_factor + (end_factor - start_factor) * share);
  }
};

// Half a cosine wave from lr to min_lr in `steps` steps. Later steps rise again: stop at `steps` (Loshchilov and
// Hutter, "SGDR", 2017; CosineAnnealingLR). With steps = 0, the rate is min_lr.
struct Cosine {
  double lr = 1e-3;
  double min_lr = 0;
  int64_t steps = 1000;
  double operator()(int64_t step) const {
    return steps == 0 ? min_lr : cosine_between(lr, min_lr, static_cast<double>(step) / static_cast<double>(steps));
  }
};

// nanoGPT's schedule: linear warm-up to lr at warmup_steps, half a cosine wave to min_lr at decay_steps, then min_lr.
struct CosineWithWarmup {
  double lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_steps = 100;
  int64_t decay_steps = 2000;
  double operator()(int64_t step) const {
    if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
    if (step > decay_steps) return min_lr;
    const int64_t length = std::max<int64_t>(decay_steps - warmup_steps, 1);
    return cosine_between(lr, min_lr, static_cast<double>(step - warmup_steps) / static_cast<double>(length));
  }
};

// Linear warm-up from 0 to lr at warmup_steps, then a line down to 0 at total_steps
// (transformers' get_linear_schedule_with_warmup). The rate of step 0 is 0 if there is a warm-up.
struct LinearWithWarmup {
  double lr = 1e-3;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1000;
  double operator()(int64_t step) const {
    if (step < warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
    const double left = static_cast<double>(total_steps - step);
    return lr * std::max(0.0, left / static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1)));
  }
};

// Linear warm-up from 0 to lr at warmup_steps, then constant (transformers' get_constant_schedule_with_warmup).
struct ConstantWithWarmup {
  double lr = 1e-3;
  int64_t warmup_steps = 100;
  double operator()(int64_t step) const {
    return step < warmup_steps ? lr * static_cast<double>(step) / static_cast<double>(warmup_steps) : lr;
  }
};

// The 1cycle policy (Smith and Topin, 2018; OneCycleLR): the rate starts at max_lr / div_factor, reaches max_lr
// after the fraction `pct_start` of the steps, and falls to max_lr / div_factor / final_div_factor. With three_phase it
// first falls back to the start value, as fast as it rose.
struct OneCycle {
  enum Anneal { kCosine, kLinear };
  double max_lr = 1e-2;
  int64_t total_steps = 1000;
  double pct_start = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
  Anneal anneal = kCosine;
  bool three_phase = false;
  double operator()(int64_t step) const {
    const double at = static_cast<double>(step), total = static_cast<double>(total_steps);
    const double initial = max_lr / div_factor, lowest = initial / final_div_factor;
    const double peak = pct_start * total - 1;
    const auto between = [this](double a, double b, double share) {
      return anneal == kCosine ? cosine_between(a, b, share) : a + (b - a) * share;
    };
    if (at <= peak) return between(initial, max_lr, peak == 0 ? 1 : at / peak);
    if (!three_phase) return between(max_lr, lowest, (at - peak) / (total - 1 - peak));
    const double down = 2 * pct_start * total - 2;
    if (at <= down) return between(max_lr, initial, down == peak ? 1 : (at - peak) / (down - peak));
    return between(initial, lowest, (at - down) / (total - 1 - down));
  }
};

}  // namespace rondo::optim
#pragma GCC visibility pop
