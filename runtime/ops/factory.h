// Ops that make a tensor's first values. They have no operands and no gradient, and are never recorded: a factory runs
// their kernels on a new tensor (run_kernel in op.h), so every device has factories.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// Element i is first + i * step. ints: {first, step} for integers, else floats: {first, step}.
extern const OpDef kArange;

// The attributes of kFill for this value.
Attrs fill_attrs(Scalar value);

}  // namespace rondo::ops
