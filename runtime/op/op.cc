#include "rondo/runtime/op/op.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo {

void IntList::push_back_many(int64_t value) {
  if (many_ == nullptr) many_ = std::make_unique<std::vector<int64_t>>(few_, few_ + kFew);
  many_->push_back(value);
  ++size_;
}

void InferContext::output(int i, DType dtype, const Dims& sizes) {
  const bool is_image = sizes.rank() == 4 && op_.kind == OpKind::kElementwise;
  strided_output(i, dtype, sizes,
                 is_image && keeps_channels_last(sizes) ? channels_last_strides(sizes) : contiguous_strides(sizes));
}

// Returns true if an elementwise op's result of these sizes is channels last.
bool InferContext::keeps_channels_last(const Dims& sizes) const {
  // A clone has the trait Convert, too, and is contiguous. Tensor::to() keeps the layout by itself.
  if (in_place_ || op_.is<trait::Convert>() || op_.numbers_elements()) return false;
  const Tensor* first = nullptr;
  for (const Tensor* input : inputs_) {
    if (!input->defined()) return false;
    if (first == nullptr && input->numel() == sizes.numel()) first = input;
  }
  return first != nullptr && first->sizes() == sizes && lies_channels_last(*first);
}

void InferContext::strided_output(int i, DType dtype, const Dims& sizes, const Dims& strides) {
  meta(i) = {dtype, inputs_.empty() ? default_device() : inputs_[0]->device(), sizes, strides, 0};
}

void InferContext::view(const Dims& sizes, const Dims& strides, int64_t offset, int i) {
  meta(i) = {dtype(0), inputs_[0]->device(), sizes, strides, offset};
}

void InferContext::fail(std::string_view what) const {
  // The message shows the inputs as the caller gave them. `inputs_` may be converted already (promotion, autocast,
  // index_operand()), which changes dtypes but not shapes. So the dtypes come from `given_`.
  std::string shapes;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i]->defined()) continue;
    DType dtype = inputs_[i]->dtype();
    if (i < given_.size()) dtype = given_[i].given.value_or(given_[i].tensor.dtype());
    absl::StrAppend(&shapes, shapes.empty() ? "" : ", ", std::string(name_of(dtype)), to_string(inputs_[i]->sizes()));
  }
  throw_op_error(op_.name, absl::StrCat(std::string(what), "; got ", shapes), where_);
}

void InferContext::fail_undefined(int i) const { fail(absl::StrCat("operand ", i, " is an undefined tensor")); }

void InferContext::require_floating(int i) const {
  if (!is_floating(dtype(i))) fail("operand " + std::to_string(i) + " must be floating point; cast it with .to(kF32)");
}
void InferContext::require_same_dtype(int a, int b) const {
  if (dtype(a) != dtype(b)) fail("operands must have the same dtype; cast one with .to()");
}

void require_defined(const char* op, const TensorArg& operand) {
  if (!operand.tensor.defined())
    throw_op_error(op, "an operand is an undefined tensor (a .grad() is undefined until backward() reaches it)",
                   operand.where);
}

}  // namespace rondo
