// The key of code for this host: the build, LLVM, the processor, the launch ABI. Costs microseconds and asks nothing of
// LLVM.
#pragma once

#include <string>

#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/runtime/io/host_key.h"

namespace rondo::compile {

using io::HostKey;

// "cpu x86_64".
std::string host_name();

// The key of this build on this machine; constant.
const HostKey& host_key();

// The processor that this build's kernels are compiled for. Code is generated for the same one.
const CodeCpu& kernel_cpu();

// All that code for `cpu` depends on, as words: if that is this host, the processor and all its features; else the name
// and the features of `cpu`, so that all hosts share the code. "" where this is not known (neither x86-64 nor aarch64):
// then nothing can be kept on disk.
std::string describe_cpu(const CodeCpu& cpu);

}  // namespace rondo::compile
