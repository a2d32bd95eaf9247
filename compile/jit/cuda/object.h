// The result of a CUDA target's compiler for one kernel: machine code, and the facts that its launches need. In caches
// and artifacts it has these bytes:
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

// The name of the function that combines partial sums. Every object whose kernel leaves partial sums contains it.
inline constexpr const char* kCombineName = "rondo_combine";

struct CudaObject {
  std::string name;  // of the function
  Schedule schedule;
  bool per_item = false;      // a table kernel
  std::vector<bool> varying;  // LoopKernel::varying
  std::vector<DType> sums;    // the type of each column sum's partial sums
  rondo::cuda::Image image;
};

// Returns an object with the facts of a kernel, without code.
CudaObject describe(const LoopKernel& kernel, const Schedule& schedule);

std::string pack(const CudaObject& object);
// Returns kInvalidArgument, with the reason, if the bytes are damaged or are not one of our objects.
absl::StatusOr<CudaObject> unpack_object(std::string_view bytes);

}  // namespace rondo::compile::cuda
