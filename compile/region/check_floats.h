// The floats of a call's programs are computed, by formulas, from the floats of its recording. This check derives the
// same graphs again, from the call's own floats, and throws InternalError if a float of a kernel or of a library call
// differs in any bit. On in debug builds, with RONDO_CHECK=floats, and with set_check_floats() (options.h). Slow where
// floats change: rules and passes run again.
#pragma once

#include "rondo/compile/region/entry.h"

namespace rondo::compile {

void check_forward_floats(const Binding& binding);
// `bound`: the backward of `binding` for these arriving gradients.
void check_backward_floats(const Binding& binding, const Binding::Backward& bound, const Arriving& arriving);

}  // namespace rondo::compile
