// Loop kernels of random programs (tests/fuzz): what fusion and lowering make of them, forward and backward.
#pragma once

#include <string>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

struct FuzzKernels {
  int programs = 0;                 // whose kernels these are
  std::vector<LoopKernel> kernels;  // each once, with all sizes constant
};
// The kernels of `count` programs from `seed` on, of those that have some; those of more than `max_elements` are left
// out. Sets RONDO_DUMP, which the process reads once.
FuzzKernels fuzz_kernels(uint64_t seed, int count, int64_t max_elements = 1 << 16);

// Graphs of `count` programs of that kind, as text: the last one that each compiled.
std::vector<std::string> fuzz_graphs(uint64_t seed, int count, int64_t max_elements = 1 << 14);

}  // namespace rondo::compile::cuda
