// The scalar programs of a step (scalar_program.h): they decide and count.
#pragma once

#include "rondo/optim/formula.h"

namespace rondo::optim {

// The Decision of a step that measures its gradients. In: the sum of their squares, device_scale, and the number of
// skipped steps. Numbers: grad_scale, max_norm. Out: the Decision, and the number of skipped steps.
Body decide_measured();
// The Decision of a step that does not. Number: NaN. Out: the Decision.
Body decide_unmeasured();

// In: the step before, Decision::updates. Out: the step.
Body count_step();

// Rules of formulas. One whose values do not depend on the step:
const RowProgram& no_step();
// Adam's: numbers lr, beta1, beta2; out lr / (1 - beta1^step), 1 / sqrt(1 - beta2^step).
Body bias_corrections();

}  // namespace rondo::optim
