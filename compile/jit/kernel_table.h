// The kernels of this process, for each target. Equal kernels are compiled once for all regions. A kernel that is
// requested at another size becomes one that reads this size at run time. So a block that meets many sequence lengths
// compiles twice: for the first length, and for all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rondo/compile/jit/kernel_variants.h"

namespace rondo::compile {

struct CompiledKernels {
  std::vector<CompiledKernel> kernels;  // in the order of the request
  int added = 0;                        // kernels that this process had not requested before
  int compiled = 0;                     // added kernels for which code was generated, because no cache had it
  int fresh = 0;                        // added kernels whose code this process did not have in memory
};

// Finds code for the kernels, and compiles the kernels for which there is none. Thread safe: if several threads want a
// kernel, one of them makes it; existing kernels are found while others compile. Throws as compile_kernels(). `hints`:
// none, or one for each kernel; then existing code is used only if it assumes all that code made with the hint would
// assume. `uses`: none, or one for each kernel.
CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes,
                                std::span<const KernelHint> hints = {}, std::span<const KernelUse> uses = {},
                                const Target& target = target_of(kCPU));
// Finds existing code for these kernels; nullopt if a kernel has none that serves.
std::optional<CompiledKernels> find_kernels(std::span<const LoopKernel> kernels,
                                            const Target& target = target_of(kCPU));

// Forgets every kernel that no program holds, with its code. Returns how many of them had code.
int64_t forget_unused_kernels();
// Forgets the sizes at which kernels were requested; code in memory stays.
void forget_unused_variants();

}  // namespace rondo::compile
