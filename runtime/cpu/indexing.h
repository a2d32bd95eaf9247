// Rows of a table on CPU. A bad index throws, with its position, before anything is read or written out of bounds.
#pragma once

#include <optional>

#include "rondo/runtime/op.h"

namespace rondo::cpu {

// Throws Error, with the caller's line, unless all of dense i64 `indices` are in [0, size), or `allowed`.
void require_indices(const KernelContext& context, const Tensor& indices, int64_t size,
                     std::optional<int64_t> allowed = std::nullopt);

void embedding_kernel(const KernelContext& context);       // weight (V, C), indices -> (..., C)
void embedding_grad_kernel(const KernelContext& context);  // grad (..., C), indices -> (V, C)
void embedding_grad_onto_kernel(
    const KernelContext& context);  // total (V, C), grad (..., C), indices -> (V, C), may be total

}  // namespace rondo::cpu
