// A window: a strided view of a dense tensor, in elements of that tensor.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

struct Window {
  int64_t offset;
  Dims sizes, strides;
  // From its first element to one behind its last.
  int64_t extent() const;
  // Where `view` stands in the memory of `base`, which is dense; its extent may reach out of it.
  static Window of(const Tensor& view, const Tensor& base);
  bool fits_in(int64_t numel) const { return offset >= 0 && (sizes.numel() == 0 || offset + extent() <= numel); }
  // Attributes of kStridedView and kOverwrite.
  Attrs for_view() const;
  Attrs for_write() const;
};
// Of a call of kOverwrite: its window in the result.
Window window_to_overwrite(const Attrs& attrs);
// The elements of `dense` there.
Tensor look(const Tensor& dense, const Window& window);

}  // namespace rondo::ops
