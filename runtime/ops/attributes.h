// Checks of attributes: of dimensions and of scalars. Public functions pass valid dimensions, but a damaged file of
// recorded calls may hold others, so rules of `infer` check them again.
#pragma once

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// Returns attribute i, a dimension of a tensor of this rank. Fails if it is out of range.
inline int dim_in(const InferContext& c, int i, int rank) {
  const int64_t dim = c.integer(i);
  if (dim < 0 || dim >= std::max(rank, 1)) [[unlikely]]
    c.fail(absl::StrCat("there is no dimension ", dim));
  return static_cast<int>(dim);
}

// True if a double can hold the scalar exactly. Scalar attributes are doubles.
inline bool is_exact_attribute(Scalar s) {
  if (!s.is_integer()) return true;
  const double real = s.real();
  return real >= -0x1p63 && real < 0x1p63 && static_cast<int64_t>(real) == s.integer();
}

}  // namespace rondo::ops
