// Indices that kernels check before they read or write. A bad one throws on CPU at once.
#pragma once

#include <optional>

#include "rondo/runtime/op.h"

namespace rondo::cpu {

// Throws Error, with its position and the caller's line, unless all of dense i64 `indices` are in [0, size), or
// `allowed`.
void require_indices(const KernelContext& context, const Tensor& indices, int64_t size,
                     std::optional<int64_t> allowed = std::nullopt);

}  // namespace rondo::cpu
