#include "rondo/runtime/onednn/onednn.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/library_error.h"
#include "rondo/runtime/onednn/onednn_library.h"

namespace rondo::cpu {

dnnl::engine& library_engine() {
  static auto* const engine = [] {
    dnnl::set_primitive_cache_capacity(0);
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return *engine;
}

void throw_if_out_of_memory() {
  try {
    throw;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
  } catch (...) {  // not an error of oneDNN
  }
}

void throw_library_error() {
  try {
    throw;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw LibraryError(absl::StrCat("oneDNN: ", error.message, " (", library().dnnl_status2str(error.status), ")"));
  } catch (...) {  // not an error of oneDNN
  }
}

static int threads_of_library() {
  return library().omp_set_num_threads == nullptr ? 1 : library().omp_get_max_threads();
}
OneLibraryThread::OneLibraryThread() : before_(threads_of_library()) {
  if (before_ != 1) library().omp_set_num_threads(1);
}
OneLibraryThread::~OneLibraryThread() {
  if (before_ != 1) library().omp_set_num_threads(before_);
}

bool moves_stack_pointer(std::string_view kernel) {
#if defined(__x86_64__)
  return kernel.starts_with("gemm:");
#else
  return false;  // no generated code
#endif
}
SignalsWait::SignalsWait(bool wanted) {
  if (!wanted) return;
  sigset_t all;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_BLOCK, &all, &before_.emplace());
}
SignalsWait::~SignalsWait() {
  if (before_) pthread_sigmask(SIG_SETMASK, &*before_, nullptr);
}

}  // namespace rondo::cpu
