// Checks of integer attributes, for rules of `infer`. Ops are called with valid ones; a damaged text may have others.
#pragma once

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// Attribute i, a dimension of a tensor of this rank. Fails if it is none.
inline int dim_in(const InferContext& c, int i, int rank) {
  const int64_t dim = c.integer(i);
  if (dim < 0 || dim >= std::max(rank, 1)) [[unlikely]]
    c.fail(absl::StrCat("there is no dimension ", dim));
  return static_cast<int>(dim);
}

}  // namespace rondo::ops
