// The one thread pool of the process: parallel_for, the products of cpu/product.h and generated kernels run on it.
//
//   parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
//     for (int64_t i = begin; i < end; ++i) y[i] = f(x[i]);
//   });
//
// Behaviour beside other work: a thread without work spins for some microseconds, then sleeps. The caller never waits
// for a thread that has not begun: it runs the pieces that no other thread took. Threads start with the first
// parallel_for that needs them, and end with the process (or with the shared library that holds them). A child process
// after fork() starts threads of its own. It may use the library if no other thread was inside of it at the fork.
//
// Thread safety: everything here may be called from any thread. Callers do not wait for each other: while one of them
// uses the pool, the others run their pieces themselves.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

#pragma GCC visibility push(default)
namespace rondo {

inline constexpr int kMaxThreads = 1024;

// The number of threads that one parallel_for uses, its caller included. One setting for the process: it holds for
// every thread and for every op. Defaults to the cores that this process may use, or to RONDO_NUM_THREADS. Results do
// not depend on it. Throws Error if RONDO_NUM_THREADS is not a number from 1 to kMaxThreads.
int num_threads();
// Throws Error unless 1 <= n <= kMaxThreads.
void set_num_threads(int n);

// Runs fn(begin, end) over [0, n) in contiguous pieces of at least `grain`. Runs inline when one piece is enough,
// inside another parallel_for, and in a OneThread scope. The first exception of a piece is rethrown to the caller,
// after all pieces. Which thread runs which piece, and how many pieces there are, is not specified; results must not
// depend on it.
void parallel_for(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

// RAII: in this scope, the ops that this thread calls use no other thread.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  bool was_inside_;
};

// True inside a parallel_for body and in a OneThread scope.
bool in_parallel();

}  // namespace rondo
#pragma GCC visibility pop
