// The result of a CUDA target's compiler for one kernel: machine code, and the facts that its launches need. As bytes
// it lies in caches and artifacts:
//
//   "RONDOCU1", XXH64 of all that follows, a line of words (object.cc), the cubin, the PTX
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rondo/compile/codegen/cuda/schedule.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/runtime/cuda/nvrtc.h"

namespace rondo::compile::cuda {

// The function that combines partial sums, in every object that leaves some.
inline constexpr const char* kCombineName = "rondo_combine";

struct CudaObject {
  std::string name;  // of the function
  Schedule schedule;
  bool per_item = false;      // a table kernel
  std::vector<bool> varying;  // LoopKernel::varying
  std::vector<DType> sums;    // the type of each column sum's partial sums
  rondo::cuda::Image image;
};

// The facts of a kernel; no code yet.
CudaObject describe(const LoopKernel& kernel, const Schedule& schedule);

std::string pack(const CudaObject& object);
// kInvalidArgument with the reason: no object of ours, or damaged.
absl::StatusOr<CudaObject> unpack_object(std::string_view bytes);

}  // namespace rondo::compile::cuda
