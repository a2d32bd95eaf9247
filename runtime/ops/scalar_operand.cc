// Ops with a C++ number where another operand could be: the number becomes a scalar tensor, by one rule.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::ops {
namespace {

bool fits(int64_t value, DType dtype) {
  switch (dtype) {
    case kU8: return value >= 0 && value <= UINT8_MAX;
    case kI32: return value >= INT32_MIN && value <= INT32_MAX;
    case kBool: return value == 0 || value == 1;
    default: return true;
  }
}

// A tensor and a number, both in the dtype that an op on them computes in.
struct Operands {
  Tensor tensor, number;
  std::source_location where;
  // A comparison may compute in i64 with a number that the tensor's dtype does not hold: all of u8 is less than 300. An
  // op whose result has the tensor's dtype cannot, and throws Error.
  Operands(const char* op, TensorArg a, Scalar s, bool compares = false) : where(a.where) {
    require_defined(op, a);
    DType dtype = promote(a.tensor.dtype(), s);
    if (s.is_integer() && !fits(s.integer(), dtype)) {
      if (!compares)
        throw_op_error(op, absl::StrCat(s.integer(), " does not fit into ", std::string(name_of(dtype))), a.where);
      dtype = kI64;
    }
    tensor = a.tensor.to(dtype, a.where);
    number = Tensor::full({}, s, {dtype, a.tensor.device()});
  }
  TensorArg first() const { return {tensor, where}; }
  TensorArg second() const { return {number, where}; }
};

using Binary = Tensor (*)(TensorArg, TensorArg);
Tensor compare(const char* name, Binary op, TensorArg a, Scalar b) {
  const Operands operands(name, a, b, /*compares=*/true);
  return op(operands.first(), operands.second());
}
Tensor extreme(const char* name, Binary op, TensorArg a, Scalar b) {
  const Operands operands(name, a, b);
  return op(operands.first(), operands.second());
}

}  // namespace

Tensor equal(TensorArg a, Scalar b) { return compare("equal", &equal, a, b); }
Tensor not_equal(TensorArg a, Scalar b) { return compare("not_equal", &not_equal, a, b); }
Tensor less(TensorArg a, Scalar b) { return compare("less", &less, a, b); }
Tensor less_equal(TensorArg a, Scalar b) { return compare("less_equal", &less_equal, a, b); }
Tensor greater(TensorArg a, Scalar b) { return compare("greater", &greater, a, b); }
Tensor greater_equal(TensorArg a, Scalar b) { return compare("greater_equal", &greater_equal, a, b); }
Tensor maximum(TensorArg a, Scalar b) { return extreme("maximum", &maximum, a, b); }
Tensor minimum(TensorArg a, Scalar b) { return extreme("minimum", &minimum, a, b); }

Tensor where(TensorArg condition, TensorArg a, Scalar b) {
  const Operands operands("where", a, b);
  return where(condition, operands.first(), operands.second());
}
Tensor where(TensorArg condition, Scalar a, TensorArg b) {
  const Operands operands("where", b, a);
  return where(condition, operands.second(), operands.first());
}
Tensor where(TensorArg condition, Scalar a, Scalar b) {
  require_defined("where", condition);
  const Operands operands("where",
                          {Tensor::full({}, a, {default_dtype(a), condition.tensor.device()}), condition.where}, b);
  return where(condition, operands.first(), operands.second());
}

}  // namespace rondo::ops
