// CUDA's targets, one for each architecture with machine code of its own. Plans and code are made without a device:
// NVRTC compiles the code.
#pragma once

#include "rondo/compile/target/target.h"

namespace rondo::compile::cuda {

extern const Target kSm80;   // devices of compute capability 8.x
extern const Target kSm90;   // devices of compute capability 9.x
extern const Target kSm100;  // devices of compute capability 10.x, and newer ones through PTX

}  // namespace rondo::compile::cuda
