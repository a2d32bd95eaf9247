// Compiles CUDA C++ by NVRTC. Needs no device and no driver. Thread safe.
#pragma once

#include <span>
#include <string>

#include "rondo/runtime/cuda/driver.h"

namespace rondo::cuda {

struct NvrtcOutput {
  NvrtcResult result;
  std::string log;    // "" or lines
  std::string cubin;  // of a success: machine code for the architecture
  std::string ptx;    // of a success, with a zero at its end: newer devices compile it themselves
};

// `name`: what the log calls the source. `architecture`: "sm_80".
NvrtcOutput compile_source(const Nvrtc& nvrtc, const std::string& source, const std::string& name,
                           const std::string& architecture, std::span<const char* const> flags);

// "13.0"
std::string version_of(const Nvrtc& nvrtc);

}  // namespace rondo::cuda
