// Functions for kernels: scalar arithmetic on a CUDA device, with the same bits as ops/scalar_math.h and dtype.h.
// device_math() is source text, not a header: NVRTC or nvcc (in tests the host's compiler) compiles it in front of
// kernels. Kernels that compile/ generates and those of this folder use the same text.
#pragma once

#include <string_view>

namespace rondo::cuda {

// Flags of NVRTC with which every operation is rounded once, and subnormals are kept.
inline constexpr const char* kExactFlags[] = {"-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"};

std::string_view device_math();

}  // namespace rondo::cuda
