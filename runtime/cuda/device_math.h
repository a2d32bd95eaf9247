// Functions for kernels: scalar arithmetic on a CUDA device, bit for bit that of ops/scalar_math.h and dtype.h. Text,
// and no header: it is compiled in front of kernels, by NVRTC or nvcc (and in tests by the host's compiler). Kernels
// that compile/ generates and those of this folder use the same text.
#pragma once

#include <string_view>

namespace rondo::cuda {

// Flags with which every operation is rounded once, and subnormals are kept.
inline constexpr const char* kExactFlags[] = {"-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"};

std::string_view device_math();

}  // namespace rondo::cuda
