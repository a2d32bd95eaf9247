#include "rondo/runtime/cpu/onednn.h"

#include <omp.h>

#include <new>

#include "oneapi/dnnl/dnnl.hpp"

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

OneLibraryThread::OneLibraryThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}
OneLibraryThread::~OneLibraryThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

}  // namespace rondo::cpu
