// Tiled kernels: in some operands neighbouring rows are adjacent in memory, in others neighbouring columns are.
#pragma once

#include <algorithm>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// True if neighbouring rows of the operand are adjacent in memory, and neighbouring columns are not.
inline bool is_transposed(const Operand& operand) {
  if (operand.is_partial || operand.is_index || operand.is_check || operand.col_stride == 0 || operand.col_stride == 1)
    return false;
  return std::any_of(operand.axes.begin(), operand.axes.end(),
                     [](const OperandAxis& axis) { return axis.divisor == 1 && axis.stride == 1 && axis.size > 1; });
}

// CPU only: true for pointwise kernels with a transposed operand. The result is equal for all kernels that have the
// same code, because it does not depend on sizes that code reads at run time.
inline bool goes_in_tiles(const LoopKernel& kernel) {
  if (kernel.inner > 1 || kernel.split_columns || kernel.chunk_rows > 0 || kernel.starts >= 0 || kernel.per_item ||
      kernel.stages.size() != 1 || !kernel.stages[0].reductions.empty())
    return false;
  // Lookups and their checks, random numbers, kIndex and running sums need the order of the rows.
  if (std::any_of(kernel.instrs.begin(), kernel.instrs.end(), [](const Instr& i) {
        return i.op == LoopOp::kPick || i.op == LoopOp::kCheckIndex || i.op == LoopOp::kIndex ||
               i.op == LoopOp::kScan || is_random(i.op);
      }))
    return false;
  const auto instr = [&](int32_t id) -> const Instr& { return kernel.instrs[static_cast<size_t>(id)]; };
  const auto touches = [&](int32_t id) { return instr(id).op == LoopOp::kLoad || instr(id).op == LoopOp::kStore; };
  const std::vector<int32_t>&row = kernel.stages[0].row, &column = kernel.stages[0].column;
  // A row spans several tiles, so a later tile might read what an earlier one has stored for the row.
  if (std::any_of(row.begin(), row.end(), [&](int32_t id) { return instr(id).op == LoopOp::kStore; })) return false;
  return std::any_of(column.begin(), column.end(), [&](int32_t id) {
    return touches(id) && is_transposed(kernel.operands[static_cast<size_t>(instr(id).index)]);
  });
}

// The size of a group of tiles that are processed together. With these numbers, a column of a transposed operand fills
// half a page, the pages of all rows and columns stay in the second-level TLB, and their lines in the second-level
// cache.
inline constexpr int64_t kRowsTogether = 512, kColumnsTogether = 64;

}  // namespace rondo::compile
