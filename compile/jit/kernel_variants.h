// The variants of one kernel: the same code but for sizes that are compiled in or read when it runs, and for what the
// code takes for granted of those that are read. Which of them serves, and what to compile where none does. No locks:
// kernel_table.cc has those.
#pragma once

#include <memory>
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
  CompiledKernel kernel;  // if it is kReady
};

struct KernelVariant {
  std::vector<int64_t> sizes;  // as compiled; those that vary stand for any
  std::vector<bool> varying;
  std::vector<ExtentRange> ranges;  // of those that vary
  std::shared_ptr<KernelSlot> slot;

  bool same_code(const KernelVariant& other) const;
  // How many extents stand in the way of serving `use`.
  int64_t differences(const KernelUse& use) const;
  // How much it leaves open that code with this hint would know. (Of what is not known to vary, nothing: as without
  // hints.)
  int64_t leaves_open(const KernelHint* hint) const;
};

// The variant to run: of those that serve, the one whose code takes the most for granted, as it is the fastest. If none
// serves, the one with the fewest extents in the way. Null: there are no variants.
const KernelVariant* nearest(std::span<const KernelVariant> variants, const WantedKernel& wanted);

// True if `best` is what `kernel` is to be run with.
bool serves(const KernelVariant& best, const LoopKernel& kernel, const WantedKernel& wanted, Sizes sizes);

// The kernel to compile for `kernel`. `best`: the nearest that is there, or null.
LoopKernel specialize(const LoopKernel& kernel, const WantedKernel& wanted, const KernelVariant* best, Sizes sizes);

}  // namespace rondo::compile
