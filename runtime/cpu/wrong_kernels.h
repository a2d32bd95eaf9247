// Which of oneDNN's kernels must not be used, and for which calls.
//
// oneDNN 2.6.3, 3.7.2 and 3.12.1 have kernels that overrun their memory or give wrong numbers for some geometries, in
// part the same. Random convolutions and products between guard pages found them (tests/runtime/guard_pages_test.cc),
// under AVX2, AVX-512 without and with bf16, and AMX. The library's next kernel takes the place of such a one. Rules go
// by the major version and the kernel's name. What one of them does is taken for all of its major version: a kernel
// that is skipped although a later version has mended it costs time, not numbers.
#pragma once

#include <string_view>

#include "rondo/runtime/cpu/convolution_call.h"
#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// `kernel`: its name (impl_info_str).
bool is_wrong(std::string_view kernel, const ConvolutionCall& call);
bool is_wrong(std::string_view kernel, const MatmulCall& call);
// What must not follow a product of the library, whichever its kernel is.
bool is_wrong(Epilogue epilogue);

}  // namespace rondo::cpu
