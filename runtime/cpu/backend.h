// The CPU's entry in the table of backends.
#pragma once

#include "rondo/runtime/backend.h"

namespace rondo::cpu {

extern const BackendTable kBackend;

}  // namespace rondo::cpu
