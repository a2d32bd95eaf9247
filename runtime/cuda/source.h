// Kernels that are written by hand: CUDA C++ as text, compiled by NVRTC when it is first needed.
//
//   constexpr Source kText = {"fill", R"cuda(extern "C" __global__ void rondo_fill(T* out, long long n) { ... })cuda"};
//   const Kernel kernel = kernel_of(device, kText, "rondo_fill", {{"T", "float"}});
//   launch_threads(device, kernel, n, out, n);
//
// A text is compiled once for each set of defines and each architecture, and loaded once per device. Its code lies in
// the disk cache of generated kernels (io/object_store.h), which later processes read, and in artifacts. NVRTC gets a
// text after the texts of device_math(), kElementTypes, RondoLayout and the functions of status.h. Thread safe.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/io/kernel_file.h"

namespace rondo::cuda {

// The kernels of one file. Name and text live as long as the process.
struct Source {
  const char* name;
  std::string_view text;
  // If not 0: the text needs instructions that only devices of exactly this capability have; 90 is sm_90a. For any
  // other device kernel_of() throws InternalError, so its callers ask DeviceState::capability() first.
  int only_for = 0;
};
// `#define name value`, in front of the text.
struct Define {
  const char* name;
  std::string value;
};

// Returns the kernel `name` of a source. Throws DeviceError if the code has to be compiled and there is no NVRTC,
// InternalError with NVRTC's log if NVRTC refuses the text. `dynamic_shared`: the bytes of dynamic shared memory that
// launches ask for. It must be the same for the same defines.
Kernel kernel_of(int device, const Source& source, const char* name, std::initializer_list<Define> defines = {},
                 unsigned dynamic_shared = 0);

// Returns the whole text that NVRTC compiles.
std::string whole_text(const Source& source, std::initializer_list<Define> defines);
// type_name() returns the name of a dtype in kernels, such as "float" or "rondo_bf16". compute_type_name() returns the
// name of the type in which arithmetic on the dtype is done.
const char* type_name(DType dtype);
const char* compute_type_name(DType dtype);
// Returns the unsigned integer type of the dtype's width, for kernels that only move elements.
const char* word_name(DType dtype);

// ---- The code of hand-written kernels, for artifacts

// `maker` of key_of_code() for hand-written kernels. It names no build of Rondo, because the code of these kernels
// follows from their text alone.
inline constexpr const char* kMaker = "by hand";
// Returns the hand-written kernels that this process has for an architecture. A record has a text and its code.
io::KernelFile kernels_by_hand(int architecture);
// Takes code from an artifact; kernel_of() uses it. kInvalidArgument: damaged. kFailedPrecondition: made by another
// NVRTC or with other flags. After an error, nothing was taken.
absl::Status add_kernels_by_hand(int architecture, const io::KernelFile& file);
// Where this process got the code of an architecture from.
struct SourceReport {
  int64_t from_disk = 0, from_artifacts = 0;
  std::vector<std::string> compiled;  // names of the sources, and their defines
};
SourceReport source_report(int architecture);
// Forgets the code in memory, except what devices have loaded, and the location of the disk cache: for tests.
void forget_kernels_by_hand();

inline constexpr int kThreads = 256;  // threads of a block

// Launches one thread for each of `n` elements, or fewer threads that take several elements each: the kernel must have
// a grid-stride loop. `args` are passed by value, with the types of the kernel's parameters.
template <class... Args> void launch_threads(int device, const Kernel& kernel, int64_t n, Args... args) {
  constexpr int64_t kMostBlocks = 1 << 20;
  void* pointers[] = {&args...};
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  launch(device, kernel, {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)}, {kThreads}, 0, pointers);
}
struct BlockSize {
  unsigned threads, dynamic_shared;
  BlockSize(unsigned threads, unsigned dynamic_shared = 0) : threads(threads), dynamic_shared(dynamic_shared) {}
};
// Launches one block for each of `n` items, where n < 2^31. The kernel needs no grid-stride loop.
template <class... Args>
void launch_every_block(int device, const Kernel& kernel, int64_t n, unsigned threads, Args... args) {
  void* pointers[] = {&args...};
  launch(device, kernel, {static_cast<unsigned>(n)}, {threads}, 0, pointers);
}
// Launches one block for each of `n` items, or fewer blocks that take several items each: the kernel must have a
// grid-stride loop.
template <class... Args>
void launch_blocks(int device, const Kernel& kernel, int64_t n, BlockSize block, Args... args) {
  constexpr int64_t kMostBlocks = 1 << 20;
  void* pointers[] = {&args...};
  launch(device, kernel, {static_cast<unsigned>(n < kMostBlocks ? n : kMostBlocks)}, {block.threads},
         block.dynamic_shared, pointers);
}

}  // namespace rondo::cuda
