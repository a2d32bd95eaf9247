// Launches: what a target's launch functions take, and these functions. All addresses are the device's.
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

// An operand of a kernel that is a check (Operand::is_check): the tensor of the indices, and what an error says.
struct IndexCheck {
  int32_t operand;
  const char* op;
  std::source_location where;
  int64_t size;
  bool at_position;  // true: the error tells the position
  const std::byte* indices;
  const Dims *sizes, *strides;
};

// One run of a kernel.
struct KernelCall {
  KernelHandle code;
  const LoopKernel* kernel;  // scheduled
  const int64_t* extents;    // of `kernel`
  void* const* operands;     // one for each operand of `kernel`
  const double* scalars;
  int64_t grain;                            // the number of elements that makes it worth waking a thread
  std::span<const IndexCheck> checks = {};  // one for each operand that is a check
};

// Reduces the partial results of chunks that a kernel has left: Note [Column order].
struct CombineCall {
  struct Sum {
    std::byte* partial;  // [chunks, cols] of `compute`; the launch may overwrite it
    std::byte* out;      // [cols] of `result`
    DType compute, result;
    LoopOp op;  // kColumnSum, kColumnMax or kColumnMin
  };
  KernelHandle code;         // of the kernel
  const LoopKernel* kernel;  // scheduled
  std::span<const Sum> sums;
};

// One run of a kernel on every item of a table. The kernel's own sizes stand for those of any item. The rows lie in
// host memory and are free again on return; the addresses in them are the device's.
struct TableCall {
  KernelHandle code;
  const LoopKernel* kernel;
  std::span<const int64_t> extents;  // of `kernel`
  TableRows rows;
  Condition when;
};

// How a target's code and its library calls run. Each function enqueues on the compute stream of the device, and copies
// what a call points to on the host. It need not copy what `owner` keeps alive: code, kernels, extents and scalars.
// `owner` is null if the device runs everything at once, if the caller waits, and if keeps_owner is false (kernels).
struct LaunchFunctions {
  using Owner = std::shared_ptr<const void>;
  bool keeps_owner = true;  // false: `kernel` and `combine` copy all that they need, and code is unloaded in its turn
  void (*kernel)(Device device, const KernelCall& call, const Owner& owner);
  void (*combine)(Device device, std::span<const CombineCall> calls, const Owner& owner);  // of one kernel or several
  void (*table)(Device device, const TableCall& call, const Owner& owner);
  // Does what may fail of a table launch, memory and loading of code, and returns the rest, which only enqueues. The
  // call's rows are free again on return. Null: nothing of `table` may fail.
  absl::AnyInvocable<void()> (*ready_table)(Device device, const TableCall& call, const Owner& owner) = nullptr;
  void (*library_call)(Device device, const std::shared_ptr<const PreparedKernel>& call,
                       std::span<std::byte* const> addresses);
};

}  // namespace rondo::compile
