// Decides which of oneDNN's kernels must not be used, and for which calls.
//
// oneDNN 2.6.3, 3.7.2 and 3.12.1 have kernels that access memory out of bounds or give wrong numbers for some
// geometries; some of these errors are in several versions. Random convolutions and products between guard pages found
// them (tests/runtime/guard_pages_test.cc), with AVX2, AVX-512 without and with bf16, and AMX. Instead of such a
// kernel, the library's next one is used. The rules depend on the major version and the kernel's name; an error in one
// version counts for its whole major version. If a later version has fixed the kernel, skipping it only costs time.
#pragma once

#include <string_view>

#include "rondo/runtime/cpu/convolution_call.h"
#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// `kernel`: the kernel's name (impl_info_str).
bool is_wrong(std::string_view kernel, const ConvolutionCall& call);
bool is_wrong(std::string_view kernel, const MatmulCall& call);
// True for an epilogue that must not be used with any kernel of the library's products.
bool is_wrong(Epilogue epilogue);

}  // namespace rondo::cpu
