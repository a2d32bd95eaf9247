// The kernels of this process, of each target: equal ones are compiled once, whatever region asks, and one that is
// asked for at another size becomes a kernel that reads this size at run time. So a block that meets many sequence
// lengths compiles twice: for the first length, and for all.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/jit/executable.h"

namespace rondo::compile {

enum class Sizes : uint8_t {
  kOwn,       // code for exactly these sizes, though code that serves them and others may be there
  kConstant,  // code for exactly these sizes (of rows there may be any number)
  kVarying,   // where a like kernel of other sizes exists, one that serves both
  kAny,       // one that serves all sizes
};

// Knowledge of a kernel's extents besides their values: which ones follow from sizes that will change, and how far
// they may go. By position in extents().
struct KernelHint {
  std::vector<bool> varying;
  std::vector<ExtentRange> ranges;  // useful_range() of each
};
// `here`, and the same kernel at the next sizes that may be met, at the smallest and at the largest (null: not known).
KernelHint compare_sizes(const LoopKernel& here, const LoopKernel* next, const LoopKernel* smallest,
                         const LoopKernel* largest);

// The extents that the caller will pass when it runs a kernel's code, by position in extents(). A caller whose extents
// differ from those of the kernel that it asks for must say so: code may assume a range of each extent.
using KernelUse = std::vector<ExtentRange>;
// Exactly the kernel's own extents, which is what callers that say nothing promise.
KernelUse exact_use(const LoopKernel& kernel);

struct CompiledKernel {
  KernelHandle handle = nullptr;
  std::shared_ptr<Executable> code;  // keeps the handle valid
};

struct CompiledKernels {
  std::vector<CompiledKernel> kernels;  // in the order asked for
  int added = 0;                        // those that this process had not asked for yet
  int compiled = 0;                     // of these, the ones for which code had to be generated: no cache had any
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

// Forgets every kernel that no program holds: for tests and for measurements of a cold start.
void forget_unused_kernels();
// Forgets which sizes were met; code in memory stays.
void forget_unused_variants();

}  // namespace rondo::compile
