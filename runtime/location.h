// Where in the user's program a call stands.
#pragma once

#include "rondo/runtime/source_location.h"

namespace rondo {

// `where`, or, if that is one of Rondo's own files, the innermost call of a module (ModuleFrame) that is not. A few
// nanoseconds: cheap enough for every recorded op.
std::source_location user_location(std::source_location where);

}  // namespace rondo
