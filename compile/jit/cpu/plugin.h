// The interface of the LLVM plug-in (toolchain_llvm.cc) for toolchain.cc: a table of functions behind one exported
// symbol. No polymorphic object and no exception crosses it, because the plug-in is built without RTTI, as LLVM is.
// Thread safe.
#pragma once

#include <string>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/target/code_generator.h"
#include "rondo/compile/target/machine_code.h"

namespace rondo::compile {

// Changes whenever the layout of a type that crosses the interface changes, or the way in which kernels are called. A
// plug-in left over from another build, and its code, must be refused.
inline constexpr uint64_t kPluginAbi = 9 * 1000000 + sizeof(LoopKernel) * 1000 + sizeof(Instr) * 10 +
                                       sizeof(JitOptions);

// The symbol that every kernel object defines: a kernel's own name is not part of its code.
inline constexpr const char* kKernelSymbol = "rondo_kernel";

// The processor that code is generated for.
struct CodeCpu {
  std::string name;  // RONDO_CPU; "native" is this host and every feature that it has
  // If the name is not "native": the features that kernels are compiled for, as "avx2 fma"
  // (runtime/base/cpu_features.h).
  std::string features;
};

// Code that LLVM's linker has placed in memory.
struct LinkedCode {
  void* code = nullptr;  // owned by the caller; given back with JitPlugin::release
  KernelEntry entry = nullptr;
};

// One compiled kernel.
struct JitResult {
  std::string object;
  std::string ir, assembly;  // listings; empty unless JitOptions asks for them
  std::string error;         // empty if all went well
};

// A function that returns bool returns false if LLVM had no memory, now or earlier: Note [LLVM without memory] in
// toolchain_llvm.cc.
struct JitPlugin {
  uint64_t abi;
  const char* (*build)();  // returns build_hash() of the plug-in
  bool (*compile)(const LoopKernel& kernel, const CodeCpu& cpu, const JitOptions& options, JitResult& result);
  bool (*link)(const std::string& object, LinkedCode& linked, std::string& error);
  void (*release)(void* code);
  bool (*describe)(const CodeCpu& cpu, std::string& toolchain);
  // Gives back memory that is read only during compilations. May be called at any time, also while another thread
  // compiles. The next compilation takes 2 ms longer.
  void (*rest)();
};

inline constexpr const char* kPluginSymbol = "rondo_jit_plugin";
inline constexpr const char* kPluginFile = "librondo_jit_llvm.so";

extern "C" const JitPlugin* rondo_jit_plugin();

}  // namespace rondo::compile
