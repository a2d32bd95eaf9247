// KernelCode: the code of one kernel on CUDA devices. A KernelHandle of a CUDA target points to a KernelCode. The code
// is loaded on a device at the first launch on that device.
//
// The sizes of a run decide which schedule a kernel has (codegen/cuda/schedule.h). Code whose sizes vary was made for
// one schedule. If a run has another schedule, code for it is made once and kept, here and in the caches.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/compile/jit/cuda/object.h"
#include "rondo/compile/target/machine_code.h"
#include "rondo/compile/target/target.h"
#include "rondo/runtime/cuda/module.h"

namespace rondo::compile::cuda {

class KernelCode final : public MachineCode {
 public:
  // `capability`: the compute capability of the target's architecture; 80 is sm_80.
  KernelCode(CudaObject object, const Target& target, int capability);
  static const KernelCode& of(KernelHandle handle) { return *static_cast<const KernelCode*>(handle); }

  const CudaObject& object() const { return object_; }
  // Return the kernel's function on a device, and the function that combines its partial sums. REQUIRES for combine():
  // the kernel leaves partial sums.
  const rondo::cuda::Kernel& function(int device) const { return module_.kernel(device, 0); }
  const rondo::cuda::Kernel& combine(int device) const { return module_.kernel(device, 1); }

  // How the kernel runs at some sizes.
  struct Run {
    const KernelCode* code = nullptr;  // this, or code for another schedule, which lives as long as this
    Grid grid;
    absl::InlinedVector<int64_t, 12> integers;  // integer_arguments()
  };
  // `kernel`: scheduled, at the sizes of the run. `extents`: these sizes. Throws Error if code for another schedule is
  // needed and there is no compiler.
  Run at(const LoopKernel& kernel, const int64_t* extents) const;
  // Returns the kernel's code for this schedule. Compiles it if no cache has it.
  const KernelCode& for_schedule(const LoopKernel& kernel, const Schedule& schedule) const;

 private:
  struct Known {
    std::vector<int64_t> sizes;  // the number of rows, then the extents
    Run run;
  };
  Run make_run(const LoopKernel& kernel) const;
  const std::string& image_for(int device) const;

  const CudaObject object_;
  const Target& target_;
  const int capability_;
  const rondo::cuda::LazyModule module_;
  mutable std::mutex mutex_;                                        // guards the members below
  mutable std::vector<std::unique_ptr<const Known>> runs_;          // the latest one first
  mutable std::vector<std::shared_ptr<const MachineCode>> others_;  // code for other schedules
};

// Returns the source that NVRTC gets.
std::string source_of(const LoopKernel& kernel, const Schedule& schedule);
// Compiles the source for an architecture. Throws NoCodeGenerator if there is no NVRTC, and InternalError with its log
// if NVRTC rejects the source.
CudaObject make_object(const LoopKernel& kernel, const Schedule& schedule, int capability);
// Throws NoCodeGenerator if there is no NVRTC.
void require_nvrtc();

}  // namespace rondo::compile::cuda
