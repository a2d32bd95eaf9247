// A launch over a table: one kernel runs on every item.
#pragma once

#include <memory>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/exec/table.h"
#include "rondo/compile/exec/target.h"
#include "rondo/compile/jit/kernel_table.h"

namespace rondo::compile {

// A kernel that runs on the items of tables. Immutable once compiled.
class TableLaunch : public std::enable_shared_from_this<TableLaunch> {
 public:
  // `kernel`: for one item; its sizes stand for those of any item. It walks rows, or splits its columns.
  explicit TableLaunch(LoopKernel kernel);

  const LoopKernel& kernel() const { return kernel_; }
  // Makes the code for the target of a device. Returns the number of kernels that had to be compiled: 0 or 1.
  int compile(Device device = kCPU);
  bool compiled() const { return target_ != nullptr; }
  // Enqueues a pass over the items. REQUIRES: compiled(); the table's addresses are those of the device that was
  // compiled for. The table itself is free again on return.
  void run(const Table& table, const Condition& when) const;

 private:
  const LoopKernel kernel_;
  std::vector<int64_t> extents_;  // of kernel_
  const Target* target_ = nullptr;
  Device device_;
  CompiledKernel code_;
};

}  // namespace rondo::compile
