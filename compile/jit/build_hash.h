// Identifies this build of the compiler. Every function gives a constant that is fixed when Rondo is built. The library
// and its plug-in must agree.
#pragma once

namespace rondo::compile {

// Returns a hash of the sources of compile/ and runtime/ops/, of all headers that they include, and of the C++
// compiler. Compiled kernels and a plug-in with another hash cannot be used.
const char* build_hash();
// Returns a text with the hash. The plug-in's file contains it, too, so that the file can be checked before it is
// loaded.
const char* build_mark();
// Returns LLVM's version, such as "19.1.7"; "none" if Rondo was built without LLVM.
const char* llvm_version();
// Returns RONDO_CPU, the processor that kernels are compiled for, such as "native" or "x86-64-v3".
const char* kernel_cpu_name();

}  // namespace rondo::compile
