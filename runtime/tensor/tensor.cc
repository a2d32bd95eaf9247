#include "rondo/runtime/tensor/tensor.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo {

Tensor Tensor::from_storage(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype,
                            std::source_location where) {
  if (!storage) throw_op_error("Tensor::from_storage", "the storage is empty", where);
  const auto fail = [&](std::string_view what) {
    throw_op_error(
        "Tensor::from_storage",
        absl::StrCat(std::string(what), ": sizes ", rondo::to_string(sizes), ", strides ", rondo::to_string(strides),
                     ", offset ", offset, ", ", storage.bytes(), " bytes of ", std::string(name_of(dtype))),
        where);
  };
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || strides.rank() != sizes.rank() || offset < 0) fail("these describe no tensor");
  int64_t last = offset, extent = 0;
  bool inside = true;
  for (int d = 0; d < sizes.rank(); ++d) {
    if (strides[d] < 0) fail("a stride is negative");
    inside = inside && !__builtin_mul_overflow(sizes[d] - 1, strides[d], &extent) &&
             !__builtin_add_overflow(last, extent, &last);
  }
  if (numel > 0 && !(inside && last < static_cast<int64_t>(storage.bytes() / size_of(dtype))))
    fail("an element lies outside of the storage");
  return over(std::move(storage), offset, sizes, strides, dtype);
}

Tensor Tensor::over(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype) {
  auto* impl = within_memory("a tensor", [] { return new TensorImpl; });
  impl->dtype = dtype;
  impl->device = storage.device();
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->storage = std::move(storage);
  return Tensor(impl);
}

int64_t Tensor::size(int64_t dim, std::source_location where) const {
  const Dims& sizes = checked("size", where)->sizes;
  if (sizes.empty()) throw_op_error("size", "a scalar has no dimensions", where);
  return sizes[normalize_dim("size", dim, sizes, where)];
}

const Tensor& TensorArg::undefined() {
  static const Tensor& kUndefined = *new Tensor;
  return kUndefined;
}

}  // namespace rondo
