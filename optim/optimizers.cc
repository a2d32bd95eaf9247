// The formulas of the optimizers that are one file, compiled as kernel code.
#include "rondo/optim/optimizers.h"

namespace rondo::optim {

// Not inline: the symbols of a kernel's inline functions are its own (cmake/isolate_kernel.sh).
#define RONDO_KERNEL_PLAN(Class) \
  const UpdatePlan& Class::kernel_plan(const Class##Options& options) { return plan(options); }
RONDO_FORMULA_OPTIMIZERS(RONDO_KERNEL_PLAN)
#undef RONDO_KERNEL_PLAN

}  // namespace rondo::optim
