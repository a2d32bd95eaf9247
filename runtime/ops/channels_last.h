// Images (B, C, H, W) whose layout is channels last, and how elementwise ops keep this layout.
//
// Note [Channels last results]. As in PyTorch, images keep their layout: a result of an elementwise op lies in memory
// as its first operand of the result's size does. If that is channels last (Note [Channels last]), the op runs on views
// (B, H, W, C), which are dense, and its result is viewed back. A recording holds the calls on these views, so a
// compiler needs no rule for the layout. Sums over such images follow the order of (B, H, W, C). Such sums are the
// gradients of operands that were broadcast to the images, and the statistics of batch_norm.
#pragma once

#include <span>

#include "rondo/runtime/op/op.h"

namespace rondo {

// Note [Channels last]. True if a tensor (B, C, H, W) lies in memory as (B, H, W, C). The test is that of PyTorch: the
// strides do not decrease in the order C, W, H, B, not even those of dimensions of size 1. If C, H and W are 1 and have
// equal strides, the tensor has the usual layout.
bool is_channels_last(const Dims& sizes, const Dims& strides);
// Returns the strides of a dense tensor (B, C, H, W) that is channels last.
Dims channels_last_strides(const Dims& sizes);

// True for a tensor (B, C, H, W) that is channels last and not dense in the usual layout.
bool lies_channels_last(const Tensor& x);
// Return views with permuted dimensions: of x (B, C, H, W) as (B, H, W, C), and of x (B, H, W, C) as (B, C, H, W).
Tensor channels_to_back(const TensorArg& x);
Tensor channels_to_front(const TensorArg& x);
// Views an op's result on (B, H, W, C) as the result (B, C, H, W) of the user's call. To the user the result
// is not a view.
Tensor result_to_front(const Tensor& result, std::source_location where);
// Returns the dimension of (B, H, W, C) that is dimension `dim` of (B, C, H, W).
constexpr int dim_at_back(int dim) { return dim == 0 ? 0 : dim == 1 ? 3 : dim - 1; }
// Returns x with these strides, copied if it has others. REQUIRES: they are the strides of a dense tensor in the usual
// layout or in channels last.
Tensor with_dense_strides(const Tensor& x, const Dims& strides);

// Both for call(). The first returns true if the results of this call of an elementwise op are channels last; the
// second makes such a call.
bool results_are_channels_last(const OpDef& op, std::span<const TensorArg> inputs);
void call_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                        std::span<Tensor> outputs);
// For a compiler that chooses layouts: makes a call with some channels last images so that its result images are
// channels last, too. Returns false, and makes no call, if the op does not keep the layout.
bool keep_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                        std::span<Tensor> outputs);
// Makes the usual call. It is OpDef::channels_last of ops whose usual call keeps the layout.
void call_as_usual(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs, std::span<Tensor> outputs);
// A fast test to run first: if it returns false, results_are_channels_last() would return false, too.
inline bool may_be_channels_last(const OpDef& op, std::span<const TensorArg> inputs) {
  if (op.kind != OpKind::kElementwise) return false;
  for (const TensorArg& input : inputs) {
    const TensorImpl* impl = input.tensor.impl();
    if (impl != nullptr && impl->sizes.rank() == 4 && impl->strides[3] != 1) return true;
  }
  return false;
}

}  // namespace rondo
