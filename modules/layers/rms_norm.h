// RMSNorm (Zhang and Sennrich, "Root mean square layer normalization", 2019) over the last dimension.
#pragma once

#include "rondo/modules/module.h"
#include "rondo/runtime/ops/ops.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct RMSNormOptions {
  double eps = 1e-6;
};
// x / sqrt(mean(x^2) + eps) * weight. weight (C) starts at 1.
struct RMSNorm : Module<RMSNorm> {
  explicit RMSNorm(int64_t size, RMSNormOptions options = {});
  Tensor& weight;
  double eps;
  Tensor forward(const Tensor& x) { return ops::rms_norm(x, weight, eps); }  // (..., C) -> (..., C)
};

}  // namespace rondo::nn
#pragma GCC visibility pop
