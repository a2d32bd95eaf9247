// A pass over a table (target/table.h): a plan of one table launch, with its code. Optimizers run their steps this way.
#pragma once

#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "rondo/compile/exec/code.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/compile/target/table.h"

namespace rondo::compile {

class Executor;

// Immutable once compiled; then several threads may run it at once.
class TableLaunch : public std::enable_shared_from_this<TableLaunch> {
 public:
  // `kernel`: for one item (LoopKernel::per_item).
  explicit TableLaunch(LoopKernel kernel) : kernel_(std::move(kernel)) {}
  // `plan`: made by make_table_plan() or parse_plan().
  explicit TableLaunch(Plan plan);

  const LoopKernel& kernel() const { return kernel_; }
  // Makes the plan, if there is none, and its code for a device. Returns the number of kernels that had to be compiled:
  // 0 or 1.
  int compile(Device device = kCPU);
  bool compiled() const { return code_.has_value(); }
  const Plan& plan() const { return *plan_; }  // REQUIRES: compiled()
  // Enqueues a pass over the items. REQUIRES: compiled(), and the table's addresses are of the device that compile()
  // was called for. The table itself may be freed on return.
  void run(const Table& table, const Condition& when = {}) const;
  // Does the part of a run that may fail: allocates memory for the table and loads code. Returns a function that does
  // the rest, which only enqueues. If no part can fail, returns null: call run(). The table may be freed on return.
  absl::AnyInvocable<void()> ready(const Table& table, const Condition& when = {}) const;

 private:
  Executor executor() const;

  const LoopKernel kernel_;
  std::optional<Plan> plan_;
  std::optional<Code> code_;
};

}  // namespace rondo::compile
