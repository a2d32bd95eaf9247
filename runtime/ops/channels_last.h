// Calls of ops on images (B, C, H, W) that are channels last, as calls on views (B, H, W, C), which are dense.
#pragma once

#include <span>

#include "rondo/runtime/op/op.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo {

// Return views with permuted dimensions: of x (B, C, H, W) as (B, H, W, C), and of x (B, H, W, C) as (B, C, H, W).
Tensor channels_to_back(const TensorArg& x);
Tensor channels_to_front(const TensorArg& x);
// Views an op's result on (B, H, W, C) as the result (B, C, H, W) of the user's call. To the user the result
// is not a view.
Tensor result_to_front(const Tensor& result, std::source_location where);
// Returns the dimension of (B, H, W, C) that is dimension `dim` of (B, C, H, W).
constexpr int dim_at_back(int dim) { return dim == 0 ? 0 : dim == 1 ? 3 : dim - 1; }
// Makes a call of an elementwise op on views (B, H, W, C), and views its results as (B, C, H, W). Sums over such
// images, as the gradient of an operand that was broadcast, follow the order of (B, H, W, C).
void call_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                        std::span<Tensor> outputs);
// For a compiler that chooses layouts: makes a call with some channels last images so that its result images are
// channels last, too. Returns false, and makes no call, if the op does not keep the layout.
bool keep_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                        std::span<Tensor> outputs);
// Makes the usual call. It is OpDef::channels_last of ops whose usual call keeps the layout.
void call_as_usual(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs, std::span<Tensor> outputs);

}  // namespace rondo
