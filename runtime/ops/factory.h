// Ops that make the first values of a new tensor. They have no gradient. A factory runs their kernels on a new tensor
// (run_kernel() in op.h), so every device has factories. While a region records, a factory is an ordinary call without
// operands, on the default device.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// Element i of n is first + i * step, computed in i64 (`whole`) or f64 and then converted. Takes no operand, or an f64
// scalar that only says on which device the result lies. ints: {-dtype, n, whole}. The dtype is negated, so that a
// compiler cannot mistake it for a size: only n is one. floats: {first, step}. If these are integers and one of them is
// not exact as a double, both follow in ints, too, and the call is never recorded.
extern const OpDef kArange;
// Returns the number of elements from `first` on that lie before `end`. Throws Error unless the three numbers are
// finite and `step` leads towards `end`.
int64_t arange_size(double first, double end, double step, std::source_location where);
// Throws the Error of a step that leads away from `end`.
[[noreturn]] void throw_wrong_step(double first, double end, double step, std::source_location where);
// Returns the attributes of kArange for n elements of `dtype`. Elements of integer dtypes are computed in i64.
Attrs arange_attrs(DType dtype, int64_t n, Scalar first, Scalar step);

// Sets every element to the value, converted to the dtype of the result. Takes no operand, or an f64 scalar that only
// says on which device the result lies. ints: {-dtype, sizes...}, with the dtype negated as in kArange; floats:
// {value}. kZeros has the value 0 and no floats.
extern const OpDef kFilled, kZeros;
// Calls kFilled or kZeros. Returns an undefined tensor for calls that are never recorded: for a scalar, which would be
// a kernel launch of its own, and for an integer that is not exact as a double.
Tensor record_filled(const OpDef& op, const Dims& sizes, Scalar value, TensorOptions options);

// Returns a tensor with this number, in options.dtype, as an operand that broadcasts to `sizes`. It is 0-dim; while a
// region records it has these sizes, so that the number is an argument of a kernel and a replay repeats it. Any integer
// is exact in i64.
Tensor number_tensor(Scalar value, const Dims& sizes, TensorOptions options);

// Sets every element of `made`, a new tensor that is not recorded, to the value.
Tensor filled(Tensor made, Scalar value);
// Returns the attributes of kFill for this value.
Attrs fill_attrs(Scalar value);

}  // namespace rondo::ops
