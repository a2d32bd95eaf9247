// Launches of generated code that the host runs: of the CPU, and of devices whose kernels are host code.
#pragma once

#include <cstddef>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// One launch of a kernel; what it points to must live until it has run.
struct KernelCall {
  KernelEntry entry;
  const LoopKernel* kernel;  // scheduled
  const int64_t* extents;    // of `kernel`
  void* const* operands;
  const double* scalars;
  int64_t grain;  // elements that pay for waking a thread
};
// Splits the iteration space between the threads, as the CPU's schedule says.
void run_on_host(const KernelCall& call);

// out[c] = the sum over chunks of partial[chunk][c], in order, onto the first: Note [Column order].
struct CombineCall {
  std::byte* partial;
  std::byte* out;
  int64_t chunks, cols;
  DType compute;  // of the sums: kF32 or kF64
  DType result;
};
void run_on_host(const CombineCall& call);

}  // namespace rondo::compile
