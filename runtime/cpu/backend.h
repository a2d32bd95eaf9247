// The CPU's entry in the table of backends. In no namespace of kernels: it is host code, for any processor.
#pragma once

#include "rondo/runtime/backend.h"

namespace rondo {

extern const BackendTable kCPUBackend;

// Whether oneDNN computes with AVX-512: the processor has it, and ONEDNN_MAX_CPU_ISA allows it. oneDNN knows nothing of
// RONDO_CPU, for which our own kernels are compiled.
bool library_has_avx512();

}  // namespace rondo
