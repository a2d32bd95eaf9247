// The scalar programs of a step (scalar_program.h): the Decision, the step count, rates and weights.
#pragma once

#include "rondo/optim/formula.h"

namespace rondo::optim {

// Computes the Decision of a step that measures its gradients. In: the sum of their squares, device_scale, and the
// number of skipped steps. Numbers: grad_scale, max_norm. Out: the Decision, and the number of skipped steps.
Body decide_measured();
// Computes the Decision of a step that does not measure its gradients. Number: NaN (the norm). Out: the Decision.
Body decide_unmeasured();

// Counts a step that is not skipped. In: the count before the step, Decision::updates. Out: the new count.
Body count_step();

// Computes the weight of a parameter in its average during the warm-up: AverageOptions::warmup. In: the step, 1 -
// decay. Out: the weight.
Body warm_average();
// Averages a buffer. This is the body of a pass over tensors, not a scalar program. Values: an average, then the buffer
// that is averaged. Scalars: those that every pass has (formula.h).
Body average_of_buffer();

// The programs of ScalarRules. no_step() is for a rule whose scalars do not depend on the step.
const RowProgram& no_step();
// Computes Adam's bias corrections. Numbers: lr, beta1, beta2. Out: lr / (1 - beta1^step), 1 / sqrt(1 - beta2^step).
Body bias_corrections();

}  // namespace rondo::optim
