// CUDA source as an image: the fake NVRTC's "cubin" is the source itself, and the fake driver runs it as host code.
//
// The host's compiler makes a shared library of it, against tests/cuda_on_host/cuda_on_host.h; the machine of that
// folder runs the threads of a block as fibers. Sources that were announced are compiled together, when the first of
// them is loaded. Libraries are kept in a folder of the build, by content: a second process compiles nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/tests/fake_cuda/control.h"

namespace rondo::fake_cuda {

// The first line of what the fake NVRTC makes: this, "sm_90" or "compute_90", and flags.
inline constexpr std::string_view kMadeFor = "// fake NVRTC: ";

// The kernels of a source: `extern "C" __global__` functions without templates. None: it is no such source. Throws
// std::runtime_error with the compiler's words. The order of threads and blocks follows from the seed: 0 forward,
// 1 reverse, else random.
std::vector<std::pair<std::string, Kernel>> kernels_of_source(const std::string& source, uint64_t seed);
// The same for a machine that runs none: nothing is compiled.
std::vector<std::pair<std::string, Kernel>> names_in_source(const std::string& source);

// Which arguments of a kernel are pointers to constants, as its source declares them.
std::vector<bool> constant_arguments(const std::string& source, const std::string& kernel);

// Kernels that run from now on count their accesses, or no longer; what was counted is forgotten.
void count_traffic(bool on);
std::vector<std::pair<std::string, TrafficCount>> counted_traffic();

// The source will probably be loaded. Thread safe.
void announce_source(const std::string& source);

}  // namespace rondo::fake_cuda
