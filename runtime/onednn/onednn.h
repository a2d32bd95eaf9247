// What all callers of oneDNN share.
#pragma once

#include <csignal>
#include <optional>
#include <string_view>

namespace rondo_dnnl {
struct engine;
}

namespace rondo::cpu {

namespace dnnl = rondo_dnnl;  // onednn_library.h

// Turns off oneDNN's own cache of primitives, for the whole process: RecentCache keeps ours. Where memory runs short
// while oneDNN makes a primitive, its cache would keep a broken one for that shape, or end the process.
dnnl::engine& library_engine();

// By its name (impl_info_str): a kernel without vectors, slower than ours. Version 2 calls its product gemm:jit on
// every processor, but generates code on x86-64 only.
inline bool is_reference(std::string_view kernel) {
#if defined(__x86_64__)
  constexpr std::string_view kPortableProduct = "gemm:ref";
#else
  constexpr std::string_view kPortableProduct = "gemm:";
#endif
  return kernel.starts_with("ref") || kernel.starts_with("simple") || kernel.starts_with(kPortableProduct);
}

// In a handler of its errors: throws std::bad_alloc if the error is want of memory. Returns otherwise.
void throw_if_out_of_memory();

// In any handler: throws an error of the library as std::bad_alloc or as LibraryError. Returns if it is another one.
void throw_library_error();

// Runs what makes or runs primitives: the library's errors leave as throw_library_error() throws them.
template <class F> decltype(auto) in_library(F&& run) {
  try {
    return run();
  } catch (...) {
    throw_library_error();
    throw;
  }
}

// oneDNN asks OpenMP for the threads of the calling thread. In this scope there is one; then the caller's own setting
// is back. Primitives are made and run in such a scope: the pool (parallel.h) cuts the work. OpenMP's threads would
// spin for milliseconds while they wait, and can be told otherwise only by the environment. They never start here.
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
// multiplies a transposed A in f32, as for the gradient of a weight. The handler of a signal that comes then gets its
// frame there, and writes over other memory of the heap: seen after Ctrl-C. So the thread's signals wait until a kernel
// of this name has returned.
bool moves_stack_pointer(std::string_view kernel);

// In this scope the thread's signals wait, but those of its own faults. Costs two calls of the system.
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
