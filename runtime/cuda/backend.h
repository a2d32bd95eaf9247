// CUDA's entry in the table of backends. It is opened when a CUDA device is first asked for; a program that never asks
// loads no library.
#pragma once

#include <string>

#include "rondo/runtime/device/backend.h"

namespace rondo::cuda {

// Opens the driver and installs the backend. Null: there is no CUDA device, and `*why_not` is the reason in one line.
const BackendTable* open(std::string* why_not);

// Waits for all devices, gives everything back and takes the backend away; the next use opens it again. Tensors, events
// and modules of CUDA devices that are left may only be destroyed, and before the next use.
void close();

}  // namespace rondo::cuda
