// Checks a LoopKernel before it is compiled or interpreted: emitters rely on these rules.
#pragma once

#include <string>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// Returns the first broken rule of loop_ir.h, or "".
std::string verify(const LoopKernel& kernel);

}  // namespace rondo::compile
