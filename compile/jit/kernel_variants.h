// The variants of one kernel. They differ in which sizes are compiled in and which are read at run time, and in what
// the code assumes about the latter. Decides which variant serves a request, and what to compile if none does. Has no
// locks: kernel_table.cc has them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/jit/executable.h"

namespace rondo::compile {

enum class Sizes : uint8_t {
  kOwn,       // code for exactly these sizes, even if code for these and other sizes exists already
  kConstant,  // code for exactly these sizes, but for any number of rows
  kVarying,   // if the same kernel exists at other sizes, code that serves both
  kAny,       // code that serves all sizes
};

// What is known about a kernel's extents besides their values: which ones follow from sizes that will change, and the
// range of each. By position in extents().
struct KernelHint {
  std::vector<bool> varying;
  std::vector<ExtentRange> ranges;  // useful_range() of each extent
};
// Compares `here` with the same kernel at the next possible sizes, at the smallest and at the largest (null: unknown).
KernelHint compare_sizes(const LoopKernel& here, const LoopKernel* next, const LoopKernel* smallest,
                         const LoopKernel* largest);

// The extents that the caller will pass when it runs a kernel's code, by position in extents(). A caller whose extents
// differ from those of the kernel that it asks for must say so: code may assume a range of each extent.
using KernelUse = std::vector<ExtentRange>;
// Returns exactly the kernel's own extents. This use is assumed if the caller declares none.
KernelUse exact_use(const LoopKernel& kernel);

struct CompiledKernel {
  KernelHandle handle = nullptr;
  std::shared_ptr<Executable> code;  // keeps the handle valid
};

// The common part of kernels of different sizes: everything but the extents that may vary.
using Structure = std::vector<uint64_t>;
Structure structure_of(const LoopKernel& kernel, const Target& target);

// A request of a caller.
struct WantedKernel {
  Structure structure;
  std::vector<int64_t> sizes;
  KernelUse use;
  const KernelHint* hint = nullptr;
  bool same_code(const WantedKernel& other) const;
};

// A kernel's code, from the moment that a thread has decided to make it.
struct KernelSlot {
  enum class State : uint8_t { kPending, kReady, kFailed } state = State::kPending;
  CompiledKernel kernel;  // set if `state` is kReady
};

struct KernelVariant {
  std::vector<int64_t> sizes;  // as compiled; a size that varies stands for any size
  std::vector<bool> varying;
  std::vector<ExtentRange> ranges;  // of the sizes that vary: what the code assumes of them
  std::shared_ptr<KernelSlot> slot;

  bool same_code(const KernelVariant& other) const;
  // Returns the number of extents that prevent this variant from serving `use`.
  int64_t differences(const KernelUse& use) const;
  // Returns the number of extents for which code made with this hint would assume a range that this variant does not
  // assume. Only extents that vary in both are counted.
  int64_t leaves_open(const KernelHint* hint) const;
};

// Returns the variant to run: among those that serve, the one whose code assumes the most, because it is the fastest.
// If none serves, returns the one with the fewest differences(). Returns null if there are no variants.
const KernelVariant* nearest(std::span<const KernelVariant> variants, const WantedKernel& wanted);

// True if `kernel` can run with `best`, so that nothing has to be compiled.
bool serves(const KernelVariant& best, const LoopKernel& kernel, const WantedKernel& wanted, Sizes sizes);

// Returns the kernel to compile for `kernel`. `best`: the result of nearest(), or null.
LoopKernel specialize(const LoopKernel& kernel, const WantedKernel& wanted, const KernelVariant* best, Sizes sizes);

}  // namespace rondo::compile
