// Compiles CUDA C++ by NVRTC. Needs no device and no driver.
//
//   const Image image = compile_image(text, "gelu.cu", 90);   // machine code for sm_90
//
// Thread safe: NVRTC's manual ("Thread Safety") allows calls from several threads as long as none of them uses a
// program that another one compiles or destroys. Each compilation here has a program of its own. Since CUDA 12.3 the
// optimizer's phases run in parallel, too.
//
// Note [Architectures]. Code is compiled for few architectures, each for all devices of its major revision that are at
// least as new: sm_80 for 8.x, sm_90 for 9.x, sm_100 for 10.x. Newer devices take the PTX of the newest architecture,
// which the driver compiles. A kernel that uses instructions of one capability alone (wgmma of sm_90a) is compiled for
// that capability and runs only there. The PTX of such an architecture is bound to it, too (PTX ISA, ".target").
#pragma once

#include <span>
#include <string>

#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/io/host_key.h"

namespace rondo::cuda {

// The target of machine code. A number is an architecture without a suffix.
struct Architecture {
  int capability;      // 90 is 9.0
  char suffix = '\0';  // 'a': with the instructions that devices of this capability alone have; 'f': with those of its
                       // family, which later devices of the major revision have, too (CUDA 12.9)
  constexpr Architecture(int capability, char suffix = '\0')  // NOLINT: a number is an architecture
      : capability(capability), suffix(suffix) {}
  std::string name() const;  // "sm_90a"
  friend bool operator==(const Architecture&, const Architecture&) = default;
};

// The architectures for which code is compiled, by compute capability: 80 is sm_80. In increasing order.
inline constexpr int kArchitectures[] = {80, 90, 100};
inline constexpr int kNewestArchitecture = 100;
// Returns the architecture whose code a device takes: 89 -> 80. For a device older than all kArchitectures: its own
// capability.
int architecture_of(int capability);
// True if a device takes an architecture's machine code. If not, the device takes the architecture's PTX, or nothing if
// the architecture has a suffix.
inline bool takes_cubin(int capability, Architecture architecture) {
  if (architecture.suffix == 'a') return capability == architecture.capability;
  return capability / 10 == architecture.capability / 10 && capability >= architecture.capability;
}

// A kernel's code for one architecture.
struct Image {
  std::string cubin;
  std::string ptx;  // of the newest architecture only, with a zero at its end; else ""

  // The image that a device of this capability loads.
  const std::string& for_device(int capability, Architecture architecture) const {
    return takes_cubin(capability, architecture) || ptx.empty() ? cubin : ptx;
  }
};

struct NvrtcOutput {
  NvrtcResult result;
  std::string log;    // "" or lines
  std::string cubin;  // after a success: machine code for the architecture
  std::string ptx;    // after a success; ends with a zero
};

// Compiles a source for one architecture. `name`: the name of the source in the log.
NvrtcOutput compile_source(const Nvrtc& nvrtc, const std::string& source, const std::string& name,
                           Architecture architecture, std::span<const char* const> flags);
// Compiles a source with kExactFlags, as for all kernels of Rondo. Throws DeviceError if there is no NVRTC,
// InternalError with NVRTC's log if it refuses the source.
Image compile_image(const std::string& source, const std::string& name, Architecture architecture);

// Returns, for example, "13.0".
std::string version_of(const Nvrtc& nvrtc);
// Returns the key of compile_image()'s results in caches and artifacts. With the source it identifies a result: it has
// the architecture, NVRTC's version and the flags. Without NVRTC the version is "", and results are not kept. `maker`:
// a name for the part of Rondo that made the sources.
io::HostKey key_of_code(Architecture architecture, const std::string& maker);

}  // namespace rondo::cuda
