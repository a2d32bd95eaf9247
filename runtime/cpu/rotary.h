// Rotary position embedding on CPU.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

// x (..., T, D), cos and sin (T, D/2) in x's compute dtype; ints {inverse}. Bit-equal to its decomposition.
void rotary_kernel(const KernelContext& context);

}  // namespace rondo::cpu
