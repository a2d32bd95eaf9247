// The key of code for this host: the build, LLVM, the processor, the launch ABI. Costs microseconds and asks nothing of
// LLVM.
#pragma once

#include <string>

#include "rondo/runtime/io/host_key.h"

namespace rondo::compile {

using io::HostKey;

// "cpu x86_64".
std::string host_name();

// The key of this build on this machine; constant.
const HostKey& host_key();

// The processor and all its features that code could use, as words. "" where this is not known (not x86-64): then
// nothing can be kept on disk.
std::string describe_cpu();

}  // namespace rondo::compile
