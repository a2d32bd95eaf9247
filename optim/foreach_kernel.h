// Makes a loop kernel (compile/codegen/loop_ir.h) from a formula on arrays: runs the formula's template on LoopValue.
#pragma once

#include <span>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/optim/foreach_body.h"

namespace rondo::optim {

// The largest number of operands of a kernel: its arrays, and the scales of its 8-bit arrays.
inline constexpr int kMaxOperands = 2 * kMaxValues + 2;

// Makes the kernel. Its operands are those of ForeachItem. `by_rows`: the kernel walks rows of `row_width` elements (0:
// of any width), else elements in a line. Sets `written` (Foreach::written).
compile::LoopKernel make_kernel(const Body& body, std::span<const ArraySpec> arrays, std::span<const int> scale_operand,
                                DType compute, bool by_rows, int64_t row_width, uint32_t& written);

}  // namespace rondo::optim
