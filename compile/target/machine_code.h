// The loaded code of one kernel.
#pragma once

#include <cstddef>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// Loaded code, in the form that its target's launch functions take (target/launch.h). Only these functions know the
// form: for the CPU it is a KernelEntry, for other devices the handle that their driver uses for a function.
using KernelHandle = const void*;

// Code in memory, which can be launched while this object lives. Immutable.
class MachineCode {
 public:
  explicit MachineCode(KernelHandle handle) : handle_(handle) {}
  virtual ~MachineCode() = default;
  MachineCode(const MachineCode&) = delete;
  MachineCode& operator=(const MachineCode&) = delete;
  KernelHandle handle() const { return handle_; }
  // REQUIRES: host code.
  KernelEntry entry() const { return reinterpret_cast<KernelEntry>(const_cast<void*>(handle_)); }
  // For host code: returns the number of bytes from the entry to the end of the code. 0: unknown, or not host code.
  virtual size_t bytes() const { return 0; }

 private:
  KernelHandle handle_;
};

}  // namespace rondo::compile
