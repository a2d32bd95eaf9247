// The functions that emitted kernels call: runtime/cuda/device_math.h, made visible in this namespace.
#pragma once

#include "rondo/runtime/cuda/device_math.h"

namespace rondo::compile::cuda {

using rondo::cuda::device_math;
using rondo::cuda::kExactFlags;

}  // namespace rondo::compile::cuda
