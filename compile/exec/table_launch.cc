#include "rondo/compile/exec/table_launch.h"

#include "rondo/compile/exec/executor.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::compile {
namespace {

const LoopKernel& only_kernel(const Plan& plan) {
  if (plan.launches.size() != 1 || plan.launches[0].kind != Launch::Kind::kTable)
    throw Error("TableLaunch: the plan is not one table launch");
  return plan.kernels[static_cast<size_t>(plan.launches[0].kernel)].kernel;
}

}  // namespace

TableLaunch::TableLaunch(Plan plan) : kernel_(only_kernel(plan)), plan_(std::move(plan)) {}

int TableLaunch::compile(Device device) {
  if (compiled()) return 0;
  const Target& target = target_of(device);
  if (!plan_.has_value()) plan_ = make_table_plan(kernel_, target);
  // An item may have any size, down to a single element, so the code must assume nothing about its size.
  KernelUse use = exact_use(kernel_);
  use[0] = {};
  for (size_t at : width_extents(kernel_)) use[at] = {};
  CompiledKernels made = find_or_compile({&kernel_, 1}, kernel_.split_columns ? Sizes::kConstant : Sizes::kAny, {},
                                         {&use, 1}, target);
  code_.emplace(*plan_, std::move(made.kernels), device, target);
  return made.compiled;
}

Executor TableLaunch::executor() const {
  static const Floats& kNone = *new Floats;  // all scalars are device values
  const bool late = !runs_at_once(code_->device());
  return {*plan_, *code_, kNone, late ? shared_from_this() : nullptr};
}

void TableLaunch::run(const Table& table, const Condition& when) const {
  const TableArgument argument{&table, when};
  executor().run_tables({&argument, 1});
}

absl::AnyInvocable<void()> TableLaunch::ready(const Table& table, const Condition& when) const {
  return executor().ready_table(0, {&table, when});
}

}  // namespace rondo::compile
