// A window: a strided view of a dense tensor, in elements of that tensor.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

struct Window {
  int64_t offset;
  Dims sizes, strides;
  // Returns the number of elements of the dense tensor from the window's first to its last, both included.
  int64_t extent() const;
  // Returns the window of `base`, a dense tensor, that `view` shows. It may reach out of `base`.
  static Window of(const Tensor& view, const Tensor& base);
  bool fits_in(int64_t numel) const { return offset >= 0 && (sizes.numel() == 0 || offset + extent() <= numel); }
  // Return the attributes of the window: for kStridedView, and for kOverwrite and kWindowCopy.
  Attrs for_view() const;
  Attrs for_write() const;
};
// Returns the window of a call of kOverwrite or kWindowCopy on a tensor of `numel` elements. Throws InternalError if
// the window does not lie inside the tensor.
Window window_of_call(const Attrs& attrs, int64_t numel);
// True for kRevalue, whose output has the values of input 1 and the history of input 0. On the tape the output and
// input 0 are one variable, so their gradients add up in one sum.
bool is_same_variable(const OpDef& op);
// Returns a view of the window in `dense`.
Tensor look(const Tensor& dense, const Window& window);

}  // namespace rondo::ops
