// A window: a strided view of a dense tensor, in elements of that tensor.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

struct Window {
  int64_t offset;
  Dims sizes, strides;
  // From its first element to one behind its last.
  int64_t extent() const;
  // Where `view` stands in the memory of `base`, which is dense; its extent may reach out of it.
  static Window of(const Tensor& view, const Tensor& base);
  bool fits_in(int64_t numel) const { return offset >= 0 && (sizes.numel() == 0 || offset + extent() <= numel); }
  // Attributes of kStridedView; of kOverwrite and kWindowCopy.
  Attrs for_view() const;
  Attrs for_write() const;
};
// The window of a call of kOverwrite or kWindowCopy on a tensor of `numel` elements. Throws InternalError if the window
// does not lie inside the tensor.
Window window_of_call(const Attrs& attrs, int64_t numel);
// True for kRevalue. Its output is the variable that input 0 is, with the values of input 1: on the tape they are one,
// and gradients of both meet in one sum.
bool is_same_variable(const OpDef& op);
// The elements of `dense` there.
Tensor look(const Tensor& dense, const Window& window);

}  // namespace rondo::ops
