// CUDA's entry in the table of backends. The first request for a CUDA device opens it. A program without such a request
// loads no library of CUDA.
#pragma once

#include <string>

#include "rondo/runtime/device/backend.h"

namespace rondo::cuda {

// Opens the driver, and installs and returns the backend. Returns null if there is no CUDA device; `*why_not` is then
// the reason in one line.
const BackendTable* open(std::string* why_not);

// Waits for all devices, releases all memory and removes the backend; the next use opens it again. Tensors, events and
// modules of CUDA devices that still exist must be destroyed before that next use, and must not be used in any other
// way.
void close();

}  // namespace rondo::cuda
