// The one thread pool. OpenMP underneath (oneDNN uses it too); std::thread in the tsan preset, whose detector does not
// understand libgomp.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

#pragma GCC visibility push(default)
namespace rondo {

// Threads that parallel_for uses from this thread; defaults to the number of cores, or RONDO_NUM_THREADS.
int num_threads();
void set_num_threads(int n);

// Runs fn(begin, end) over [0, n) in contiguous pieces of at least `grain`. Runs inline when one piece is enough or
// when called from inside another parallel_for. An exception of a worker is rethrown to the caller. Which thread gets
// which piece is not specified; results must not depend on it.
void parallel_for(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

// RAII: what this thread calls in this scope, parallel_for or a library, uses no other thread.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  bool was_inside_;
};

// True inside a parallel_for body.
bool in_parallel();

}  // namespace rondo
#pragma GCC visibility pop
