#include "rondo/compile/codegen/cpu/schedule.h"

#include <algorithm>

#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile::cpu {
namespace {

// A kernel without row structure walks all elements as one row, which threads split anywhere.
void flatten(LoopKernel& kernel) {
  if (kernel.stages.size() != 1 || !kernel.stages[0].reductions.empty()) return;
  for (const Operand& operand : kernel.operands) {
    const bool constant = operand.axes.empty() && operand.col_stride == 0;
    const bool dense = operand.col_stride == 1 &&
                       (kernel.rows == 1 ||
                        (operand.axes.size() == 1 && operand.axes[0].divisor == 1 &&
                         operand.axes[0].size == kernel.rows && operand.axes[0].stride == kernel.cols));
    if (!constant && !dense) return;
  }
  for (Operand& operand : kernel.operands) operand.axes.clear();
  kernel.cols *= kernel.rows;
  kernel.rows = 1;
  kernel.split_columns = true;
}

}  // namespace

void schedule(LoopKernel& kernel) {
  const bool sums_columns = std::any_of(kernel.operands.begin(), kernel.operands.end(),
                                        [](const Operand& operand) { return operand.is_partial; });
  if (sums_columns) kernel.chunk_rows = column_chunk_rows(kernel.rows);
  else flatten(kernel);
}

}  // namespace rondo::compile::cpu
