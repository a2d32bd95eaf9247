// Gradient clipping by the norm of all gradients together (Pascanu et al., 2013).
#pragma once

#include <span>

#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct ClipOptions {
  bool error_if_nonfinite = false;
};
// Scales the gradients of `params` by max_norm / (norm + 1e-6) if that is below 1, and returns their Euclidean norm
// from before. Summed in f64 over chunks of fixed size in a fixed order: the same bits for any number of threads. A
// norm that is not finite makes every gradient NaN, or throws Error if so asked, leaving them as they were. Throws
// Error if the parameters are updated at seams (update_at_seams.h).
double clip_grad_norm_(std::span<const Tensor> params, double max_norm, ClipOptions options = {});

}  // namespace rondo::optim
#pragma GCC visibility pop
