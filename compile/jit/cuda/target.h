// CUDA as a target, in skeleton: plans are made for it, and its compiler gives CUDA C++ instead of machine code. No
// device has it yet, so it stands in no table: tests run its kernels on the host (tests/cuda_on_host/).
#pragma once

#include "rondo/compile/exec/target.h"

namespace rondo::compile::cuda {

extern const Target kTarget;

}  // namespace rondo::compile::cuda
