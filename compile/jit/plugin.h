// What the LLVM plug-in (toolchain_llvm.cc) offers to executable.cc: a table of functions behind one exported symbol.
// Nothing polymorphic and no exceptions cross the border, because the plug-in is built without RTTI, as LLVM is.
// Thread safe.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/jit/executable.h"

namespace rondo::compile {

// Changes whenever the layout of anything that crosses the border does: a plug-in left over from another build must be
// refused, not called.
inline constexpr uint64_t kPluginAbi =
    4 * 1000000 + sizeof(LoopKernel) * 1000 + sizeof(Instr) * 10 + sizeof(JitOptions);

struct JitResult {
  void* code = nullptr;              // owned by the caller; given back with JitPlugin::release
  std::vector<KernelEntry> entries;  // in the order of the kernels
  std::string object;
  std::string error;                 // empty if all went well
  std::string ir, assembly;          // as JitOptions asks
};

struct JitPlugin {
  uint64_t abi;
  void (*compile)(std::span<const LoopKernel> kernels, const JitOptions& options, JitResult& result);
  void (*load)(std::string object, std::span<const std::string> names, JitResult& result);
  void (*release)(void* code);
  void (*describe)(std::string& toolchain);
};

inline constexpr const char* kPluginSymbol = "rondo_jit_plugin";
inline constexpr const char* kPluginFile = "librondo_jit_llvm.so";

extern "C" const JitPlugin* rondo_jit_plugin();

}  // namespace rondo::compile
