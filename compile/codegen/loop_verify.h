// Checks of a LoopKernel before it is compiled or interpreted: what emitters may take for granted.
#pragma once

#include <string>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// The first broken rule of loop_ir.h, or "".
std::string verify(const LoopKernel& kernel);

}  // namespace rondo::compile
