// A kernel that runs on every item of a table.
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/compile/codegen/cuda/kernel_emitter.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile::cuda {

// Defines the names that replace the parameters of a launch: block, cols, n_rows, operands, extents.
void KernelEmitter::emit_item() {
  line("if (when != nullptr ? read(when) != equals : read(failed) != 0u) return;");
  line("// The last item that begins at this block or before.");
  line("long long low = 0, high = n_items - 1;");
  {
    const Block search = block("while (low < high)");
    line("const long long middle = (low + high + 1) / 2;");
    line("if (read(&table[middle].first_block) <= static_cast<long long>(blockIdx.x)) low = middle;");
    line("else high = middle - 1;");
  }
  line("const RondoTableRow& item = table[low];");
  line("const Index block = static_cast<Index>(blockIdx.x - item.first_block);");
  line("void* const* const operands = global_address(item.operands);");
  if (k_.n_scalars > 0) line("const double* const scalars = global_address(item.scalars);");
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    const std::string type = (k_.operands[i].is_output ? "" : "const ") + memory_type(k_.operands[i].dtype);
    line(type, "* const p", i, " = global_address(static_cast<", type, "*>(operands[", i, "]));");
  }
  if (k_.split_columns) {
    line("const Index cols = static_cast<Index>(item.numel);");
    return;
  }
  line("const Index width = static_cast<Index>(item.width);");
  line("const long long n_rows = item.rows + (item.numel > item.rows * item.width ? 1 : 0);");
  for (size_t i = 1; i < k_.varying.size(); ++i)
    if (k_.varying[i]) line("const long long x", i, " = item.width;");
}

void KernelEmitter::emit_cols_of_row() {
  if (table_)
    line("const Index cols = row < item.rows ? width : static_cast<Index>(item.numel - item.rows * item.width);");
}

std::string emit_table(const LoopKernel& kernel, const Schedule& schedule) {
  if (const std::string problem = verify(kernel); !problem.empty()) throw_internal(kernel.name + ": " + problem);
  invariant(schedule.chunk_rows == 0, "a table of column sums");
  return KernelEmitter(kernel, schedule, /*table=*/true).run();
}

int64_t table_blocks(const LoopKernel& kernel, const Schedule& schedule, int64_t rows, int64_t width, int64_t numel) {
  LoopKernel item = kernel;
  if (kernel.split_columns) {
    item.cols = numel;
  } else {
    item.rows = rows + (numel > rows * width ? 1 : 0);
    item.cols = width;
  }
  return grid(item, schedule).x;
}

Grid table_grid(const LoopKernel& kernel, const Schedule& schedule, std::span<RondoTableRow> rows) {
  Grid grid{.x = 0, .threads = schedule.threads};
  for (RondoTableRow& row : rows) {
    row.first_block = grid.x;
    grid.x += table_blocks(kernel, schedule, row.rows, row.width, row.numel);
  }
  if (grid.x > std::numeric_limits<int32_t>::max())
    throw Error(absl::StrCat(kernel.name, ": the table needs more blocks than a CUDA grid has; split it in two"));
  return grid;
}

}  // namespace rondo::compile::cuda
