// Dtype promotion: the one place that decides in which dtype an op computes and which dtype its result has. The rules
// are PyTorch's; tests/runtime/promotion_test.cc compares them with recorded values, cell by cell.
//
//   Tensor hypot(TensorArg a, TensorArg b) { return call_promoted(kHypot, a, b); }
//
// - The dtypes form three categories: bool < integers < floats. The operand of the highest category decides the
//   result's dtype. Inside a category a tensor with dimensions counts before a 0-dim tensor, and a 0-dim
//   tensor before a Scalar.
// - Results of bf16 and f16 are computed in f32 and rounded once, unless all operands are exact in the result's dtype.
// - Operands of one dtype are passed on as they are. Otherwise casts are recorded as ops of their own, so a compiled
//   region runs the same casts as eager execution.
#pragma once

#include <span>

#include "rondo/runtime/base/scalar.h"
#include "rondo/runtime/op/op.h"

namespace rondo::ops {

enum class Promotion : uint8_t {
  kArithmetic,  // the result has the promoted dtype
  kQuotient,    // the same, but integers and bools become f32
  kCompare,     // both operands are cast to the promoted dtype; the op decides its result's dtype
};

// Returns the dtype to which all tensors are promoted.
DType result_dtype(std::span<const Tensor* const> tensors);
DType result_dtype(const Tensor& a, const Tensor& b);

// Calls an op of two tensors on operands of any dtypes. Throws Error for undefined tensors.
Tensor call_promoted(const OpDef& op, TensorArg a, TensorArg b, Promotion promotion = Promotion::kArithmetic);
// Does the same for an op of one tensor and a scalar attribute.
Tensor call_promoted(const OpDef& op, TensorArg a, Scalar s, Promotion promotion = Promotion::kArithmetic);
// Writes the result into `a`. Throws Error if the result is a float and `a` is not, or if only `a` is bool.
void call_promoted_(const OpDef& op, TensorArg a, TensorArg b, Promotion promotion = Promotion::kArithmetic);
void call_promoted_(const OpDef& op, TensorArg a, Scalar s, Promotion promotion = Promotion::kArithmetic);
// Calls an op of floats; integers and bools become f32.
Tensor call_floating(const OpDef& op, TensorArg x, Attrs attrs = {});

// Calls an op of one tensor and a number of the tensor's dtype: a comparison, or an op that keeps elements as they are,
// such as maximum. The attribute is rounded to the promoted dtype. If this dtype cannot hold an integer, comparisons
// (kCompare) compute in i64, because every u8 is less than 300; all other ops throw Error. `of_tensors`: the function
// for an integer that an attribute would round. `name`: the name of the public function, for errors.
using OfTensors = Tensor (*)(TensorArg, TensorArg);
Tensor call_with_number(const char* name, const OpDef& op, OfTensors of_tensors, TensorArg a, Scalar s,
                        Promotion promotion = Promotion::kArithmetic);
// The two steps of call_with_number(): the promoted dtype, and the attribute for elements
// of `dtype`. REQUIRES: is_exact_attribute(s).
DType dtype_with_number(const char* name, const TensorArg& a, Scalar s, Promotion promotion = Promotion::kArithmetic);
Attrs number_attrs(Scalar s, DType dtype);

// Throws Error unless elements of `dtype` can hold `value`. For an integer dtype, the value without its fraction must
// be in range; for a float dtype, a finite value must not become infinite.
void require_in_range(const char* op, Scalar value, DType dtype, std::source_location where);

// Converts x to another dtype, as a dense copy. Images keep their layout (Note [Channels last results]).
Tensor converted(TensorArg x, DType dtype);

}  // namespace rondo::ops
