#include "rondo/runtime/cpu/onednn.h"

#include <omp.h>

#include "oneapi/dnnl/dnnl.hpp"

namespace rondo::cpu {

dnnl::engine& library_engine() {
  static auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

OneLibraryThread::OneLibraryThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}
OneLibraryThread::~OneLibraryThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

}  // namespace rondo::cpu
