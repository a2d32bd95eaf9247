// Information about the library that runs products and convolutions.
#pragma once

#include <string>

namespace rondo {

// True if oneDNN uses AVX-512: the processor has it, and ONEDNN_MAX_CPU_ISA allows it. This does not depend on
// RONDO_CPU, for which Rondo's own kernels are compiled.
bool library_has_avx512();

// Returns, for example, "oneDNN 2.6.3, instructions 3ff": the library's version, and the instruction sets that it uses
// (one bit each, dnnl_cpu_isa_t). With another version or other instruction sets it uses other kernels, so sums and
// times differ.
std::string product_library();

}  // namespace rondo
