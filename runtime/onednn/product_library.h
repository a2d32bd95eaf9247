// Which library products and convolutions run in, and what it computes with.
#pragma once

#include <string>

namespace rondo {

// Whether oneDNN computes with AVX-512: the processor has it, and ONEDNN_MAX_CPU_ISA allows it. oneDNN knows nothing of
// RONDO_CPU, for which our own kernels are compiled.
bool library_has_avx512();

// "oneDNN 2.6.3, instructions 3ff": the library's version, and the instruction sets it uses (a bit each,
// dnnl_cpu_isa_t). Another version, or another limit, has other kernels: other sums and other times.
std::string product_library();

}  // namespace rondo
