// Functions that all callers of oneDNN share.
#pragma once

#include <csignal>
#include <optional>
#include <string_view>

namespace rondo_dnnl {
struct engine;
}

namespace rondo::cpu {

namespace dnnl = rondo_dnnl;  // onednn_library.h

// Returns the CPU engine of the process. The first call turns off oneDNN's own cache of primitives for the whole
// process; Rondo uses RecentCache instead. If memory runs out while oneDNN makes a primitive, oneDNN's cache would keep
// a broken primitive for that shape, or end the process.
dnnl::engine& library_engine();

// True if the name of a kernel (impl_info_str) is that of a scalar reference kernel, which is slower than Rondo's own
// kernels. Version 2 calls its matrix product gemm:jit on every processor, but generates code only on x86-64.
inline bool is_reference(std::string_view kernel) {
#if defined(__x86_64__)
  constexpr std::string_view kPortableProduct = "gemm:ref";
#else
  constexpr std::string_view kPortableProduct = "gemm:";
#endif
  return kernel.starts_with("ref") || kernel.starts_with("simple") || kernel.starts_with(kPortableProduct);
}

// Call it in a catch block. Throws std::bad_alloc if the current exception is oneDNN's error for a lack of memory.
void throw_if_out_of_memory();

// Call it in a catch block. If the current exception is oneDNN's, throws std::bad_alloc or LibraryError; else returns.
void throw_library_error();

// Returns run(), which makes or runs primitives. Errors of oneDNN are rethrown by throw_library_error().
template <class F> decltype(auto) in_library(F&& run) {
  try {
    return run();
  } catch (...) {
    throw_library_error();
    throw;
  }
}

// In this scope OpenMP's number of threads for the calling thread, which oneDNN uses, is 1. Afterwards the earlier
// setting is restored. Primitives are made and run only in such a scope, and the pool (parallel.h) splits the work. So
// OpenMP's threads never start here: they would spin for milliseconds while they wait, and only environment variables
// could change that.
class OneLibraryThread {
 public:
  OneLibraryThread();
  ~OneLibraryThread();
  OneLibraryThread(const OneLibraryThread&) = delete;
  OneLibraryThread& operator=(const OneLibraryThread&) = delete;

 private:
  const int before_;
};

// Note [Signals wait]. With AVX-512, oneDNN 2.6's gemm:jit moves the stack pointer into its working memory while it
// multiplies a transposed A in f32, as for the gradient of a weight. If a signal arrives then, its handler's frame is
// placed there and overwrites other heap memory (seen after Ctrl-C). So this thread's signals are blocked until the
// kernel has returned. moves_stack_pointer(): true for the names of kernels with this problem.
bool moves_stack_pointer(std::string_view kernel);

// Blocks the thread's signals in this scope if `wanted`, except signals for its own faults. Costs two system calls.
class SignalsWait {
 public:
  explicit SignalsWait(bool wanted);
  ~SignalsWait();
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  std::optional<sigset_t> before_;
};

}  // namespace rondo::cpu
