// Where each operand of a call of cat or slice_grad belongs in the result. Operands may lie side by side or overlap.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// One operand's place in the result's memory.
struct Part {
  Dims sizes, strides;
  int64_t offset = 0;  // elements from the result's first
};

struct Parts {
  std::vector<Part> places;  // by operand
  // Operand 0 has the result's size, and the others are added to it. The fields below are then about the others only.
  bool first_is_whole = false;
  // No element of the result belongs to two operands, so they may be written in any order.
  bool apart = false;
  // If `apart`, along dimension `dim`: the ranges [begin, end) that no operand covers, sorted.
  int dim = 0;
  std::vector<std::pair<int64_t, int64_t>> gaps;
};

// Return the places of the operands of a call. REQUIRES: `infer` has admitted the call; the result is dense.
Parts parts_of_cat(const KernelContext& context);
Parts parts_of_slice_grad(const KernelContext& context);

// Operands that lie side by side along a dimension of the result and fill it. `order`: their order along the dimension.
struct SideBySide {
  int dim = 0;
  std::vector<size_t> order;
};
// Returns nullopt if the call does not put its operands side by side. `inputs`: the operands' sizes.
std::optional<SideBySide> side_by_side(const OpDef& op, const Attrs& attrs, std::span<const Dims> inputs,
                                       const Dims& result);

}  // namespace rondo::ops
