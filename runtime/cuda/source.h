// Kernels that are written by hand: CUDA C++ as text, compiled by NVRTC when it is first needed.
//
//   constexpr Source kText = {"fill", R"cuda(extern "C" __global__ void rondo_fill(T* out, long long n) { ... })cuda"};
//   const Kernel kernel = kernel_of(device, kText, "rondo_fill", {{"T", "float"}});
//   launch_threads(device, kernel, n, out, n);
//
// A text is compiled once per process for each set of defines and each architecture, and loaded once per device. It is
// compiled behind device_math(), kElementTypes, RondoLayout and the functions of status.h.
// Thread safe.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/dtype.h"

namespace rondo::cuda {

// The kernels of one file. Name and text live as long as the process.
struct Source {
  const char* name;
  std::string_view text;
};
// `#define name value`, in front of the text.
struct Define {
  const char* name;
  std::string value;
};

// Throws DeviceError: there is no NVRTC, or it refuses the text; the message has its log.
Kernel kernel_of(int device, const Source& source, const char* name, std::initializer_list<Define> defines = {});

// All that NVRTC sees.
std::string whole_text(const Source& source, std::initializer_list<Define> defines);
// Machine code for an architecture: "sm_80". Throws as kernel_of().
std::string compile_text(const std::string& file, const std::string& text, const std::string& architecture);
// A dtype in kernels: "float", "rondo_bf16"; and the type that arithmetic on it is carried out in.
const char* type_name(DType dtype);
const char* compute_type_name(DType dtype);
// An unsigned integer as wide: for kernels that only move elements.
const char* word_name(DType dtype);

inline constexpr int kThreads = 256;  // of a block

// One thread for each of `n`, or fewer that take several each: the kernel strides over the grid. `args` are passed by
// value, with the types of the kernel's parameters.
template <class... Args> void launch_threads(int device, const Kernel& kernel, int64_t n, Args... args) {
  constexpr int64_t kMostBlocks = 1 << 20;
  void* pointers[] = {&args...};
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  launch(device, kernel, {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)}, {kThreads}, 0, pointers);
}
// One block for each of `n`, or fewer likewise.
template <class... Args>
void launch_blocks(int device, const Kernel& kernel, int64_t n, unsigned threads, Args... args) {
  constexpr int64_t kMostBlocks = 1 << 20;
  void* pointers[] = {&args...};
  launch(device, kernel, {static_cast<unsigned>(n < kMostBlocks ? n : kMostBlocks)}, {threads}, 0, pointers);
}

}  // namespace rondo::cuda
