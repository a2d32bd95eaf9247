// The formulas of the optimizers that have no NAME.cc, compiled as kernel code.
#include "rondo/optim/optimizers.h"
#include "rondo/optim/formula_code.h"

namespace rondo::optim {

// Not inline: the symbols of inline functions in kernel code are local to their file (cmake/isolate_kernel.sh).
#define RONDO_FORMULA_CODE(Class)                                                                                 \
  FormulaCode<Class##Options> Class::code() {                                                                     \
    return {[](const Class##Options& o, const Tensor& /*param*/) -> const UpdatePlan& { return Class::plan(o); }, \
            &Class::rule};                                                                                        \
  }
RONDO_FORMULA_OPTIMIZERS(RONDO_FORMULA_CODE)
#undef RONDO_FORMULA_CODE

}  // namespace rondo::optim
