// What all callers of oneDNN share.
#pragma once

namespace dnnl {
struct engine;
}

namespace rondo::cpu {

dnnl::engine& library_engine();

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

}  // namespace rondo::cpu
