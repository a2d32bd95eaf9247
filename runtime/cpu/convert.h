// Conversions between dtypes on CPU.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

// Input 0 -> output 0, of any two dtypes; the input broadcasts. Floats become integers by cutting the fraction. What is
// out of range then becomes the nearest number of the integer's type, NaN becomes 0; u8 takes the low byte of an i64.
void convert_kernel(const KernelContext& context);

}  // namespace rondo::cpu
