// The CPU's entry in the table of backends. In no namespace of kernels: it is host code, for any processor.
#pragma once

#include "rondo/runtime/backend.h"

namespace rondo {

extern const BackendTable kCPUBackend;

}  // namespace rondo
