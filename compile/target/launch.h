// Launches: the arguments of a target's launch functions, and these functions. All addresses are device addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>

#include "absl/functional/any_invocable.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/target/machine_code.h"
#include "rondo/compile/target/table.h"
#include "rondo/runtime/device/device.h"
#include "rondo/runtime/op/op.h"

namespace rondo::compile {

// For an operand with Operand::is_check: the tensor of the indices, and what an error message needs.
struct IndexCheck {
  int32_t operand;
  const char* op;
  std::source_location where;
  int64_t size;
  bool at_position;  // true: the error names the position
  const std::byte* indices;
  const Dims *sizes, *strides;
};

// One run of a kernel.
struct KernelCall {
  KernelHandle code;
  const LoopKernel* kernel;  // the scheduled kernel
  const int64_t* extents;    // the kernel's extents
  void* const* operands;     // one for each operand of `kernel`
  const double* scalars;
  int64_t grain;                            // below this number of elements, a second thread is not worth waking
  std::span<const IndexCheck> checks = {};  // one for each operand that is a check
};

// Reduces the partial results of chunks that a kernel has written: Note [Column order].
struct CombineCall {
  struct Sum {
    std::byte* partial;  // [chunks, cols] of `compute`; the launch may overwrite it
    std::byte* out;      // [cols] of `result`
    DType compute, result;
    LoopOp op;  // kColumnSum, kColumnMax or kColumnMin
  };
  KernelHandle code;         // the kernel's code
  const LoopKernel* kernel;  // the scheduled kernel
  std::span<const Sum> sums;
};

// One run of a kernel on every item of a table. The kernel's own sizes are only an example. The rows are in host memory
// and may be freed on return; the addresses in them are device addresses.
struct TableCall {
  KernelHandle code;
  const LoopKernel* kernel;
  std::span<const int64_t> extents;  // the kernel's extents
  TableRows rows;
  Condition when;
};

// How a target's code and its library calls run. Each function enqueues on the compute stream of the device. It copies
// the host memory that a call points to, except what `owner` keeps alive: code, kernels, extents and scalars. `owner`
// is null if the device runs everything immediately, or if the caller waits for the device. For kernels, it is also
// null if keeps_owner is false.
struct LaunchFunctions {
  using Owner = std::shared_ptr<const void>;
  bool keeps_owner = true;  // false: `kernel` and `combine` copy what they need, and code is unloaded in stream order
  void (*kernel)(Device device, const KernelCall& call, const Owner& owner);
  void (*combine)(Device device, std::span<const CombineCall> calls, const Owner& owner);  // for one or several kernels
  void (*table)(Device device, const TableCall& call, const Owner& owner);
  // Does the parts of a table launch that may fail (allocating memory, loading code). Returns a function that does the
  // rest, which only enqueues. The call's rows may be freed on return. Null: no part of `table` can fail.
  absl::AnyInvocable<void()> (*ready_table)(Device device, const TableCall& call, const Owner& owner) = nullptr;
  void (*library_call)(Device device, const std::shared_ptr<const PreparedKernel>& call,
                       std::span<std::byte* const> addresses);
};

}  // namespace rondo::compile
