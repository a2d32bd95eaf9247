// The code of one kernel, loaded.
#pragma once

#include <cstddef>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// Code in memory, callable as long as it lives. Immutable.
class MachineCode {
 public:
  explicit MachineCode(KernelEntry entry) : entry_(entry) {}
  virtual ~MachineCode() = default;
  MachineCode(const MachineCode&) = delete;
  MachineCode& operator=(const MachineCode&) = delete;
  KernelEntry entry() const { return entry_; }
  // Bytes from the entry to the end of the code; 0: unknown.
  virtual size_t bytes() const { return 0; }

 protected:
  KernelEntry entry_;
};

}  // namespace rondo::compile
