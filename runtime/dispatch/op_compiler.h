// The interface through which a device runs elementwise ops, reductions and what is made of them without kernels of its
// own. compile/ implements it: generated kernels, which serve all sizes (compile/exec/eager_ops.h).
#pragma once

#include <span>
#include <string_view>

#include "rondo/runtime/op/op.h"

namespace rondo {

class OpCompiler {
 public:
  virtual ~OpCompiler() = default;
  // Runs a call on its operands' device and fills `outputs` with new dense tensors without history. False, and nothing
  // has happened: the op has no lowering for these operands. `homes`: by output, the memory that the caller wants it
  // in, if it fits; undefined, or missing at the end: the op's own. Thread safe.
  virtual bool run(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                   std::span<Tensor> outputs, std::source_location where, std::span<const Tensor> homes) = 0;
  // For the log's perf_hints: something runs in a slower way than was asked for. Thread safe.
  virtual void hint(std::string_view text) = 0;
};

}  // namespace rondo

// compile/ defines it (exec/eager_ops.cc), and whoever links compile/ gets it: compile/CMakeLists.txt makes the linker
// take that object out of its archive. Weak: null in a program without compile/.
extern "C" [[gnu::weak]] rondo::OpCompiler* rondo_op_compiler();

namespace rondo {

// The one of this process; null: there is none. Used on devices whose BackendTable::generates is true.
inline OpCompiler* op_compiler() { return &rondo_op_compiler == nullptr ? nullptr : rondo_op_compiler(); }

}  // namespace rondo
