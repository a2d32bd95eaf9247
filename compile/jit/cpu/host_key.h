// The key of code for this host: the build, LLVM's version, the processor, the launch ABI. Computing it takes
// microseconds, and does not load LLVM.
#pragma once

#include <string>

#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/runtime/io/host_key.h"

namespace rondo::compile {

using io::HostKey;

// Returns the name of this host as a target, such as "cpu x86_64".
std::string host_name();

// Returns the key of this build on this machine. It never changes.
const HostKey& host_key();

// Returns the processor for which this build's own kernels were compiled. Code is generated for the same processor.
const CodeCpu& kernel_cpu();

// Describes, in words, all that code for `cpu` depends on. If `cpu` is "native": this host's processor and all its
// features. Otherwise the name and the features of `cpu`, so that all hosts share the code. "" if it is not known
// (neither x86-64 nor aarch64): then nothing can be kept on disk.
std::string describe_cpu(const CodeCpu& cpu);

}  // namespace rondo::compile
