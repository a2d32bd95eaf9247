#include "rondo/runtime/base/shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rondo {

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.rank(); ++i) absl::StrAppend(&text, i ? ", " : "", dims[i]);
  return text + "]";
}

int normalize_dim(const char* op, int64_t dim, const Dims& sizes, std::source_location where) {
  const int64_t span = std::max(sizes.rank(), 1);
  if (dim < -span || dim >= span) [[unlikely]]
    throw_op_error(op, absl::StrCat("dimension ", dim, " is out of range for ", to_string(sizes)), where);
  return static_cast<int>(dim < 0 ? dim + span : dim);
}

int normalize_dim(const char* op, int64_t dim, int rank, std::source_location where) {
  const int64_t span = std::max(rank, 1);
  if (dim < -span || dim >= span) [[unlikely]]
    throw_op_error(op, absl::StrCat("dimension ", dim, " is out of range for ", rank, " dimensions"), where);
  return static_cast<int>(dim < 0 ? dim + span : dim);
}

bool broadcast_shapes(const Dims& a, const Dims& b, Dims& out) {
  const Dims& longer = a.rank() >= b.rank() ? a : b;
  const Dims& shorter = a.rank() >= b.rank() ? b : a;
  const int lead = longer.rank() - shorter.rank();
  out = longer;
  for (int i = 0; i < shorter.rank(); ++i) {
    const int64_t x = longer[lead + i], y = shorter[i];
    if (x != y && x != 1 && y != 1) return false;
    out[lead + i] = x == 1 ? y : x;
  }
  return true;
}

Dims broadcast_strides(const Dims& sizes, const Dims& strides, const Dims& to) {
  Dims result = Dims::filled(to.rank(), 0);
  const int lead = to.rank() - sizes.rank();
  for (int i = 0; i < sizes.rank(); ++i) result[lead + i] = sizes[i] == 1 && to[lead + i] != 1 ? 0 : strides[i];
  return result;
}

}  // namespace rondo
