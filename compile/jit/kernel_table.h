// The kernels of this process, of each target: equal ones are compiled once, whatever region asks, and one that is
// asked for at another size becomes a kernel that reads this size at run time. So a block that meets many sequence
// lengths compiles twice: for the first length, and for all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rondo/compile/jit/kernel_variants.h"

namespace rondo::compile {

struct CompiledKernels {
  std::vector<CompiledKernel> kernels;  // in the order asked for
  int added = 0;                        // those that this process had not asked for yet
  int compiled = 0;                     // of these, the ones for which code had to be generated: no cache had any
  int fresh = 0;                        // and the ones whose code this process did not have, wherever it came from
};

// Thread safe: a kernel that several threads want is made by one of them; what is there is found while others compile.
// Errors as compile_kernels. `hints`, if any, one each: code is then found only if it takes as much for granted.
// `uses`, if any, one each.
CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes,
                                std::span<const KernelHint> hints = {}, std::span<const KernelUse> uses = {},
                                const Target& target = target_of(kCPU));
// Nothing unless code that serves is there for all of them.
std::optional<CompiledKernels> find_kernels(std::span<const LoopKernel> kernels,
                                            const Target& target = target_of(kCPU));

// Forgets every kernel that no program holds, and the code of all; returns how many kernels had code.
int64_t forget_unused_kernels();
// Forgets which sizes were met; code in memory stays.
void forget_unused_variants();

}  // namespace rondo::compile
