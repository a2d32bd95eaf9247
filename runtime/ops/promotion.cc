#include "rondo/runtime/ops/promotion.h"

namespace rondo::ops {

DType common_dtype(const Tensor& a, const Tensor& b) {
  if (is_floating(a.dtype()) == is_floating(b.dtype()) && a.rank() != b.rank()) {
    if (a.rank() == 0) return b.dtype();
    if (b.rank() == 0) return a.dtype();
  }
  return promote(a.dtype(), b.dtype());
}

Tensor call_promoted(const OpDef& op, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined(op.name, operand);
  if (a.tensor.dtype() == b.tensor.dtype()) return call(op, {a, b});
  const DType dtype = common_dtype(a.tensor, b.tensor);
  const Tensor left = a.tensor.to(dtype, a.where), right = b.tensor.to(dtype, b.where);
  return call(op, {{left, a.where}, {right, b.where}});
}

}  // namespace rondo::ops
