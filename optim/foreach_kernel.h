// From a formula on arrays to a loop kernel (compile/codegen/loop_ir.h): runs the formula's template on LoopValue.
#pragma once

#include <span>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/optim/foreach_body.h"

namespace rondo::optim {

// Arrays and the scales of 8-bit ones.
inline constexpr int kMaxOperands = 2 * kMaxValues + 2;

// Operands as in ForeachTable. `by_rows`: the kernel walks rows of `row_width` elements (0: of any width), else
// elements in a line. Sets `written` (Foreach::written).
compile::LoopKernel make_kernel(const Body& body, std::span<const ArraySpec> arrays, std::span<const int> scale_operand,
                                DType compute, bool by_rows, int64_t row_width, uint32_t& written);

}  // namespace rondo::optim
