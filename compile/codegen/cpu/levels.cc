#include "rondo/compile/codegen/cpu/levels.h"

#include <algorithm>

namespace rondo::compile {

bool moves_with_row(const Operand& operand) {
  for (const OperandAxis& axis : operand.axes)
    if (!is_picked(axis) && axis.stride != 0 && axis.size > 1) return true;
  return false;
}

std::vector<Level> levels_of(const LoopKernel& kernel) {
  std::vector<Level> levels(kernel.instrs.size(), Level::kKernel);
  const auto of_operands = [&](const Instr& i) {
    Level level = Level::kKernel;
    for (int32_t id : {i.a, i.b, i.c})
      if (id >= 0) level = std::max(level, levels[static_cast<size_t>(id)]);
    return level;
  };
  const auto at_operand = [&](const Instr& i, bool in_columns) {
    const Operand& operand = kernel.operands[static_cast<size_t>(i.index)];
    if (in_columns && operand.col_stride != 0) return Level::kColumn;
    return moves_with_row(operand) ? Level::kRow : Level::kKernel;
  };
  for (const Stage& stage : kernel.stages) {
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column}) {
      const bool in_columns = list == &stage.column;
      for (int32_t id : *list) {
        const Instr& i = kernel.instrs[static_cast<size_t>(id)];
        Level& level = levels[static_cast<size_t>(id)];
        if (is_effect(i.op)) level = in_columns ? Level::kColumn : Level::kRow;
        else if (i.op == LoopOp::kScan) level = Level::kColumn;
        else if (i.op == LoopOp::kLoad || i.op == LoopOp::kIndex || is_random(i.op)) level = at_operand(i, in_columns);
        else if (i.op == LoopOp::kPick) level = std::max(of_operands(i), at_operand(i, in_columns));
        else level = of_operands(i);
      }
    }
    for (int32_t id : stage.reductions) levels[static_cast<size_t>(id)] = Level::kRow;
  }
  return levels;
}

}  // namespace rondo::compile
