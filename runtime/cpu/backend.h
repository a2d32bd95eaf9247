// The CPU's entry in the table of backends. In no namespace of kernels: it is host code, for any processor.
#pragma once

#include <string>

#include "rondo/runtime/backend.h"

namespace rondo {

extern const BackendTable kCPUBackend;

// Whether oneDNN computes with AVX-512: the processor has it, and ONEDNN_MAX_CPU_ISA allows it. oneDNN knows nothing of
// RONDO_CPU, for which our own kernels are compiled.
bool library_has_avx512();

// The library that products and convolutions run in, and the instruction sets it uses (a bit each, dnnl_cpu_isa_t):
// "oneDNN 2.6.3, instructions 3ff". Another version, or another limit, has other kernels: other sums and other times.
std::string product_library();

}  // namespace rondo
