// Ops that make a tensor's first values. They have no operands and no gradient, and are never recorded: a factory runs
// their kernels on a new tensor (run_kernel in op.h), so every device has factories.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// Element i is first + i * step. ints: {first, step} for integers, else floats: {first, step}.
extern const OpDef kArange;

enum class Distribution : int64_t { kUniform, kNormal, kInteger };
// Element i is a function of (seed, offset, i) alone: random.h. ints: {distribution, seed, offset, low, span}; the last
// two belong to kInteger, whose numbers are low ... low + span - 1, with span as a uint64_t.
extern const OpDef kDraw;

// The attributes of kFill for this value.
Attrs fill_attrs(Scalar value);

}  // namespace rondo::ops
