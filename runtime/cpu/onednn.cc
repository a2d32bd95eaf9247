#include "rondo/runtime/cpu/onednn.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cpu/onednn_versions.h"
#include "rondo/runtime/library_error.h"

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
  } catch (...) {  // not the library's
  }
}

void throw_library_error() {
  try {
    throw;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw LibraryError(absl::StrCat("oneDNN: ", error.message, " (", library().dnnl_status2str(error.status), ")"));
  } catch (...) {  // not the library's
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

}  // namespace rondo::cpu
