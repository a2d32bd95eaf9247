// The interface by which a device without kernels of its own runs elementwise ops, reductions and ops that decompose
// into these. compile/ implements it by generated kernels, which serve all sizes (compile/exec/eager_ops.h).
#pragma once

#include <span>
#include <string_view>

#include "rondo/runtime/op/op.h"

namespace rondo {

class OpCompiler {
 public:
  virtual ~OpCompiler() = default;
  // Runs a call on its operands' device and fills `outputs` with new dense tensors without history. Returns false,
  // without any effect, if the op has no lowering for these operands. homes[i]: memory in which the caller wants output
  // i, if it fits. If homes[i] is undefined, or `homes` has fewer than i + 1 elements, output i gets memory of its own.
  // Thread safe.
  virtual bool run(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                   std::span<Tensor> outputs, std::source_location where, std::span<const Tensor> homes) = 0;
  // Writes to the log's perf_hints that something runs slower than requested. Thread safe.
  virtual void hint(std::string_view text) = 0;
};

}  // namespace rondo

// Defined in compile/ (exec/eager_ops.cc). In programs that link compile/, its CMakeLists.txt makes the linker take
// that object file from the archive. Weak: null in a program without compile/.
extern "C" [[gnu::weak]] rondo::OpCompiler* rondo_op_compiler();

namespace rondo {

// Returns the compiler of this process, or null if there is none. Used on devices whose BackendTable::generates is
// true.
inline OpCompiler* op_compiler() { return &rondo_op_compiler == nullptr ? nullptr : rondo_op_compiler(); }

}  // namespace rondo
