#include "rondo/compile/codegen/cpu/schedule.h"

#include <algorithm>

#include "rondo/compile/codegen/flatten.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile::cpu {
void schedule(LoopKernel& kernel) {
  const bool sums_columns = std::any_of(kernel.operands.begin(), kernel.operands.end(),
                                        [](const Operand& operand) { return operand.is_partial; });
  if (sums_columns) kernel.chunk_rows = column_chunk_rows(kernel.rows);
  else flatten(kernel);
}

}  // namespace rondo::compile::cpu
