// Dtype promotion of ops with several operands, in one place.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// The dtype of a result of two operands: a scalar tensor does not widen a tensor of its own family.
DType common_dtype(const Tensor& a, const Tensor& b);

// call(op, {a, b}) after casting both operands to their common dtype.
Tensor call_promoted(const OpDef& op, TensorArg a, TensorArg b);

}  // namespace rondo::ops
