#include "rondo/compile/codegen/flatten.h"

namespace rondo::compile {

void flatten(LoopKernel& kernel) {
  if (kernel.stages.size() != 1 || !kernel.stages[0].reductions.empty()) return;
  for (const Instr& i : kernel.instrs)
    if (i.op == LoopOp::kScan) return;
  for (const Operand& operand : kernel.operands) {
    // A picked axis does not depend on the row.
    const size_t picked = is_picked(operand) ? 1 : 0;
    const bool constant = operand.col_stride == 0 && operand.axes.size() == picked;
    const bool dense = operand.col_stride == 1 &&
                       (kernel.rows == 1 ||
                        (operand.axes.size() == picked + 1 && operand.axes.back().divisor == 1 &&
                         operand.axes.back().size == kernel.rows && operand.axes.back().stride == kernel.cols));
    if (!constant && !dense) return;
  }
  for (Operand& operand : kernel.operands) operand.axes.resize(is_picked(operand) ? 1 : 0, {});
  kernel.cols *= kernel.rows;
  kernel.rows = 1;
  kernel.split_columns = true;
}

}  // namespace rondo::compile
