// Kernels that go through tiles: some operand's rows are neighbours in memory, another's columns are.
#pragma once

#include <algorithm>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// True if neighbouring rows of the operand are neighbours in memory, and columns are not.
inline bool is_transposed(const Operand& operand) {
  if (operand.is_partial || operand.is_index || operand.is_check || operand.col_stride == 0 || operand.col_stride == 1)
    return false;
  return std::any_of(operand.axes.begin(), operand.axes.end(),
                     [](const OperandAxis& axis) { return axis.divisor == 1 && axis.stride == 1 && axis.size > 1; });
}

// On a CPU: pointwise kernels with a transposed operand. Follows from what code is made for, and not from sizes.
inline bool goes_in_tiles(const LoopKernel& kernel) {
  if (kernel.inner > 1 || kernel.split_columns || kernel.chunk_rows > 0 || kernel.starts >= 0 || kernel.per_item ||
      kernel.stages.size() != 1 || !kernel.stages[0].reductions.empty())
    return false;
  // A lookup and its check, a random number, a place and a running sum are made in the order of the rows only.
  if (std::any_of(kernel.instrs.begin(), kernel.instrs.end(), [](const Instr& i) {
        return i.op == LoopOp::kPick || i.op == LoopOp::kCheckIndex || i.op == LoopOp::kIndex ||
               i.op == LoopOp::kScan || is_random(i.op);
      }))
    return false;
  const auto instr = [&](int32_t id) -> const Instr& { return kernel.instrs[static_cast<size_t>(id)]; };
  const auto touches = [&](int32_t id) { return instr(id).op == LoopOp::kLoad || instr(id).op == LoopOp::kStore; };
  const std::vector<int32_t>&row = kernel.stages[0].row, &column = kernel.stages[0].column;
  // A row comes in several tiles; what is stored once for it might be read again.
  if (std::any_of(row.begin(), row.end(), [&](int32_t id) { return instr(id).op == LoopOp::kStore; })) return false;
  return std::any_of(column.begin(), column.end(), [&](int32_t id) {
    return touches(id) && is_transposed(kernel.operands[static_cast<size_t>(instr(id).index)]);
  });
}

// Rows and columns whose tiles follow each other. A column of a transposed operand then fills half a page, and the
// pages of all rows and columns stay in the second TLB, their lines in the second cache.
inline constexpr int64_t kRowsTogether = 512, kColumnsTogether = 64;

}  // namespace rondo::compile
