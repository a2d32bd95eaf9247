// Checks a LoopKernel before it is compiled or interpreted: emitters rely on the rules of loop_ir.h.
#pragma once

#include <string>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// Describes the first broken rule; "" if there is none.
std::string verify(const LoopKernel& kernel);

}  // namespace rondo::compile
