// What emitted kernels call: the loop IR's operations on a CUDA device, bit for bit those of runtime/ops/scalar_math.h
// and runtime/dtype.h. Text, and no header: it is compiled in front of the kernels, by NVRTC or nvcc (and in tests by
// the host's compiler).
#pragma once

#include <string_view>

namespace rondo::compile::cuda {

// Flags with which every operation is rounded once, as the loop IR wants it, and subnormals are kept.
inline constexpr const char* kExactFlags[] = {"-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"};

std::string_view device_math();

}  // namespace rondo::compile::cuda
