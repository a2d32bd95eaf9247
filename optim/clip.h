// Gradient clipping by their global norm (Pascanu et al., 2013).
#pragma once

#include <span>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct ClipOptions {
  bool error_if_nonfinite = false;
};
// Scales the gradients of `params` by max_norm / (norm + 1e-6) if that factor is below 1, and returns their Euclidean
// norm before scaling: an f64 scalar on their device. The call does not wait for the device; `.item()` of the result
// does. The tape sees a write of every gradient. The norm is summed in f64 over chunks of fixed size in a fixed order,
// so its bits do not depend on the number of threads. A norm that is not finite gives what PyTorch gives: if it is
// infinite, infinite elements become NaN and all others 0; if it is NaN, or max_norm is infinite, too, every element
// becomes NaN. (Optimizer::step({.max_norm = ...}) skips such a step.) With error_if_nonfinite, the call waits for the
// norm, throws Error instead and changes nothing. Throws Error if the gradients are on two devices, or if the
// parameters are updated at seams (update_at_seams.h).
Tensor clip_grad_norm_(std::span<const Tensor> params, double max_norm, ClipOptions options = {});

}  // namespace rondo::optim
#pragma GCC visibility pop
