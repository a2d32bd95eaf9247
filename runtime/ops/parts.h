// Parts of one tensor, side by side or over each other, that cat and slice_grad put together: where each operand of a
// call belongs in the result.
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
  // Operand 0 covers all of the result, as a sum does to which the others are added. The rest is about the others then.
  bool first_is_whole = false;
  // No element belongs to two of them, so they may be put in place in any order.
  bool apart = false;
  // If they are `apart` along `dim`: the [begin, end) that nothing covers. Sorted.
  int dim = 0;
  std::vector<std::pair<int64_t, int64_t>> gaps;
};

// REQUIRES: the call is one that `infer` has admitted; the result is dense.
Parts parts_of_cat(const KernelContext& context);
Parts parts_of_slice_grad(const KernelContext& context);

// Operands that lie side by side along a dimension of the result and fill it, in their order there.
struct SideBySide {
  int dim = 0;
  std::vector<size_t> order;
};
// nullopt: the op, or this call, does something else. `inputs`: the operands' sizes.
std::optional<SideBySide> side_by_side(const OpDef& op, const Attrs& attrs, std::span<const Dims> inputs,
                                       const Dims& result);

}  // namespace rondo::ops
