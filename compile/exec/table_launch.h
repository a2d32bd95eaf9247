// A launch over a table: one kernel runs on every item. The code does not depend on the number or the sizes of items;
// threads share the elements of all items together.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/exec/table.h"
#include "rondo/compile/jit/kernel_table.h"

namespace rondo::compile {

// Calls piece(i, begin, end) in parallel for elements [begin, end) of item i; together they cover all items. Pieces
// begin and end where rows do (`by_rows`), else at multiples of kSplitGrain; the last of an item has the rest.
void for_each_piece(const Table& table, bool by_rows,
                    absl::FunctionRef<void(size_t item, int64_t begin, int64_t end)> piece);

// How an operand of the kernel follows an item.
struct TableOperand {
  DType dtype = kF32;
  bool per_row = false;  // one element for each row, not for each element
};

// A kernel that runs on the items of tables. Immutable.
class TableLaunch {
 public:
  // `kernel`: for one item; its sizes stand for those of any item. It walks rows of `width` columns (`by_rows`), or
  // splits its columns.
  TableLaunch(LoopKernel kernel, std::vector<TableOperand> operands, bool by_rows);

  const LoopKernel& kernel() const { return kernel_; }
  // Makes the code for the target of a device. Returns the number of kernels that had to be compiled: 0 or 1.
  int compile(Device device = kCPU);
  bool compiled() const { return code_.entry != nullptr; }
  // Runs now: call it in work that is enqueued. REQUIRES: compiled(); the table points to memory of the device that was
  // compiled for.
  void run(const Table& table) const;

 private:
  void run_piece(const TableItem& item, void* const* operands, int64_t begin, int64_t end) const;

  const LoopKernel kernel_;
  const std::vector<TableOperand> operands_;
  const bool by_rows_;
  std::vector<int64_t> extents_;       // of kernel_
  std::vector<size_t> row_stride_at_;  // where in extents_ the width stands as a stride
  CompiledKernel code_;
};

}  // namespace rondo::compile
