#include "rondo/runtime/cpu/bad_index.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rondo::cpu {

void require_indices(const KernelContext& context, const Tensor& indices, int64_t size,
                     std::optional<int64_t> allowed) {
  const int64_t* index = reinterpret_cast<const int64_t*>(indices.impl()->data());
  for (int64_t i = 0; i < indices.numel(); ++i)
    if ((index[i] < 0 || index[i] >= size) && index[i] != allowed)
      throw_op_error(context.op.name,
                     absl::StrCat("index ", index[i], " at position ", i, " is out of range for size ", size),
                     context.where);
}

void require_in_range(const char* op, const Indices& indices, int64_t size, bool at_position,
                      std::source_location where) {
  const Dims &sizes = indices.sizes, &strides = indices.strides;
  for (int64_t position = 0; position < sizes.numel(); ++position) {
    int64_t at = 0, rest = position;
    for (int d = sizes.rank() - 1; d >= 0; --d) {
      at += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    const int64_t index = indices.data[at];
    if (index >= 0 && index < size) continue;
    throw_op_error(op,
                   absl::StrCat("index ", index, at_position ? absl::StrCat(" at position ", position) : "",
                                " is out of range for size ", size),
                   where);
  }
}

void throw_bad_index(const char* op, const Tensor& indices, int64_t size, bool at_position,
                     std::source_location where) {
  const auto* data = reinterpret_cast<const int64_t*>(indices.impl()->data());
  require_in_range(op, {data, indices.sizes(), indices.strides()}, size, at_position, where);
  throw_internal("all indices are in range");
}

void BadIndex::note(int64_t index, int64_t position) {
  const std::lock_guard lock(mutex_);
  if (position_ && *position_ <= position) return;
  position_ = position;
  index_ = index;
}

void BadIndex::check(const KernelContext& context) const {
  if (!position_) return;
  throw_op_error(context.op.name, absl::StrCat("index ", index_, " is out of range for size ", size_), context.where);
}

}  // namespace rondo::cpu
