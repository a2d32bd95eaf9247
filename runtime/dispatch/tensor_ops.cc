// The ops as members of Tensor, and as its operators.
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

Tensor Tensor::view(const Dims& to, std::source_location where) const { return ops::view({*this, where}, to); }
Tensor Tensor::reshape(const Dims& to, std::source_location where) const { return ops::reshape({*this, where}, to); }
Tensor Tensor::transpose(int64_t a, int64_t b, std::source_location where) const {
  return ops::transpose({*this, where}, a, b);
}
Tensor Tensor::t(std::source_location where) const {
  if (defined() && rank() != 2)
    throw_op_error("Tensor::t", "needs two dimensions, not " + rondo::to_string(sizes()) + "; see transpose()", where);
  return transpose(0, 1, where);
}
Tensor Tensor::permute(const Dims& order, std::source_location where) const {
  return ops::permute({*this, where}, order);
}
Tensor Tensor::expand(const Dims& to, std::source_location where) const { return ops::expand({*this, where}, to); }
Tensor Tensor::select(int64_t dim, int64_t index, std::source_location where) const {
  return ops::select({*this, where}, dim, index);
}
Tensor Tensor::slice(int64_t dim, Slice range, std::source_location where) const {
  return ops::slice({*this, where}, dim, range);
}
Tensor Tensor::squeeze(int64_t dim, std::source_location where) const { return ops::squeeze({*this, where}, dim); }
Tensor Tensor::unsqueeze(int64_t dim, std::source_location where) const { return ops::unsqueeze({*this, where}, dim); }
Tensor Tensor::flatten(int64_t first, int64_t last, std::source_location where) const {
  return ops::flatten({*this, where}, first, last);
}
Tensor Tensor::contiguous(std::source_location where) const {
  checked("contiguous", where);
  return is_contiguous() ? *this : clone(where);
}
Tensor Tensor::clone(std::source_location where) const {
  return ops::cast({*this, where}, checked("clone", where)->dtype);
}
Tensor Tensor::to(DType dtype, std::source_location where) const {
  return dtype == checked("to", where)->dtype ? *this : ops::converted({*this, where}, dtype);
}
Tensor Tensor::to(Device device, std::source_location where) const {
  return device == checked("to", where)->device ? *this : ops::to_device({*this, where}, device);
}

Tensor Tensor::exp(std::source_location where) const { return ops::exp({*this, where}); }
Tensor Tensor::log(std::source_location where) const { return ops::log({*this, where}); }
Tensor Tensor::sqrt(std::source_location where) const { return ops::sqrt({*this, where}); }
Tensor Tensor::abs(std::source_location where) const { return ops::abs({*this, where}); }
Tensor Tensor::matmul(const Tensor& other, std::source_location where) const {
  return ops::matmul({*this, where}, {other, where});
}
Tensor Tensor::softmax(int64_t dim, std::source_location where) const { return ops::softmax({*this, where}, dim); }
Tensor Tensor::sum(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::sum({*this, where}, dims, keepdim);
}
Tensor Tensor::mean(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::mean({*this, where}, dims, keepdim);
}
Tensor Tensor::max(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::max({*this, where}, dims, keepdim);
}
Tensor Tensor::min(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::min({*this, where}, dims, keepdim);
}
Tensor Tensor::argmax(std::optional<int64_t> dim, bool keepdim, std::source_location where) const {
  return ops::argmax({*this, where}, dim, keepdim);
}

Tensor& Tensor::add_(const Tensor& other, std::source_location where) {
  return ops::add_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::sub_(const Tensor& other, std::source_location where) {
  return ops::sub_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::mul_(const Tensor& other, std::source_location where) {
  return ops::mul_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::div_(const Tensor& other, std::source_location where) {
  return ops::div_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::add_(Scalar other, std::source_location where) { return ops::add_({*this, where}, other), *this; }
Tensor& Tensor::sub_(Scalar other, std::source_location where) { return ops::sub_({*this, where}, other), *this; }
Tensor& Tensor::mul_(Scalar other, std::source_location where) { return ops::mul_({*this, where}, other), *this; }
Tensor& Tensor::div_(Scalar other, std::source_location where) { return ops::div_({*this, where}, other), *this; }
Tensor& Tensor::copy_(const Tensor& source, std::source_location where) {
  return ops::copy_({*this, where}, {source, where}), *this;
}
Tensor& Tensor::fill_(Scalar value, std::source_location where) { return ops::fill_({*this, where}, value), *this; }

Tensor& Tensor::operator+=(TensorArg other) { return add_(other.tensor, other.where); }
Tensor& Tensor::operator-=(TensorArg other) { return sub_(other.tensor, other.where); }
Tensor& Tensor::operator*=(TensorArg other) { return mul_(other.tensor, other.where); }
Tensor& Tensor::operator/=(TensorArg other) { return div_(other.tensor, other.where); }

Tensor operator+(TensorArg a, TensorArg b) { return ops::add(a, b); }
Tensor operator-(TensorArg a, TensorArg b) { return ops::sub(a, b); }
Tensor operator*(TensorArg a, TensorArg b) { return ops::mul(a, b); }
Tensor operator/(TensorArg a, TensorArg b) { return ops::div(a, b); }
Tensor operator+(TensorArg a, Scalar b) { return ops::add(a, b); }
Tensor operator-(TensorArg a, Scalar b) { return ops::sub(a, b); }
Tensor operator*(TensorArg a, Scalar b) { return ops::mul(a, b); }
Tensor operator/(TensorArg a, Scalar b) { return ops::div(a, b); }
Tensor operator+(Scalar a, TensorArg b) { return ops::add(b, a); }
Tensor operator-(Scalar a, TensorArg b) { return ops::rsub(b, a); }
Tensor operator*(Scalar a, TensorArg b) { return ops::mul(b, a); }
Tensor operator/(Scalar a, TensorArg b) { return ops::rdiv(b, a); }
Tensor operator-(TensorArg a) { return ops::neg(a); }

Tensor operator==(TensorArg a, TensorArg b) { return ops::equal(a, b); }
Tensor operator!=(TensorArg a, TensorArg b) { return ops::not_equal(a, b); }
Tensor operator<(TensorArg a, TensorArg b) { return ops::less(a, b); }
Tensor operator<=(TensorArg a, TensorArg b) { return ops::less_equal(a, b); }
Tensor operator>(TensorArg a, TensorArg b) { return ops::greater(a, b); }
Tensor operator>=(TensorArg a, TensorArg b) { return ops::greater_equal(a, b); }
Tensor operator==(TensorArg a, Scalar b) { return ops::equal(a, b); }
Tensor operator!=(TensorArg a, Scalar b) { return ops::not_equal(a, b); }
Tensor operator<(TensorArg a, Scalar b) { return ops::less(a, b); }
Tensor operator<=(TensorArg a, Scalar b) { return ops::less_equal(a, b); }
Tensor operator>(TensorArg a, Scalar b) { return ops::greater(a, b); }
Tensor operator>=(TensorArg a, Scalar b) { return ops::greater_equal(a, b); }
Tensor operator==(Scalar a, TensorArg b) { return ops::equal(b, a); }
Tensor operator!=(Scalar a, TensorArg b) { return ops::not_equal(b, a); }
Tensor operator<(Scalar a, TensorArg b) { return ops::greater(b, a); }
Tensor operator<=(Scalar a, TensorArg b) { return ops::greater_equal(b, a); }
Tensor operator>(Scalar a, TensorArg b) { return ops::less(b, a); }
Tensor operator>=(Scalar a, TensorArg b) { return ops::less_equal(b, a); }

}  // namespace rondo
