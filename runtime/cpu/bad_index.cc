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

void throw_bad_index(const char* op, const Tensor& indices, int64_t size, bool at_position,
                     std::source_location where) {
  const int64_t* index = reinterpret_cast<const int64_t*>(indices.impl()->data());
  const int64_t* const bad = std::find_if(index, index + indices.numel(),
                                          [&](int64_t i) { return i < 0 || i >= size; });
  invariant(bad != index + indices.numel(), "all indices are in range");
  throw_op_error(op,
                 absl::StrCat("index ", *bad, at_position ? absl::StrCat(" at position ", bad - index) : "",
                              " is out of range for size ", size),
                 where);
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
