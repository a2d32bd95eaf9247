// The one thread pool of the process: parallel_for, the products of cpu/product.h and generated kernels run on it.
//
//   parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
//     for (int64_t i = begin; i < end; ++i) y[i] = f(x[i]);
//   });
//
// A thread without work spins for some microseconds, then sleeps. The caller never waits for a thread that has not
// begun: it runs the pieces that no other thread took. Threads start with the first parallel_for that needs them, and
// end with the process (or with the shared library that holds them).
//
// Thread safety: everything here may be called from any thread. Callers do not wait for each other: while one of them
// uses the pool, all other callers run their pieces themselves.
//
// What a host program needs to know about threads: Note [Threads], at the end of this file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

#pragma GCC visibility push(default)
namespace rondo {

inline constexpr int kMaxThreads = 1024;

// Returns the number of threads that one parallel_for uses, its caller included. One setting for the process: it holds
// for every thread and for every op. Defaults to RONDO_NUM_THREADS, else to OMP_NUM_THREADS, else to the cores that
// this process may use: those of its affinity mask, or fewer if its container has a CPU quota. Results do not depend on
// it. Throws Error if RONDO_NUM_THREADS is not a number from 1 to kMaxThreads. OMP_NUM_THREADS is shared with other
// libraries: the first number of a list ("4,2") counts, and an invalid value is ignored.
int num_threads();
// Returns one sentence for the user if a CPU quota limits the default of num_threads(), else an empty text. The library
// itself prints nothing; programs such as train_gpt and rondorun print this.
std::string why_fewer_threads();
// Sets the number of threads of each parallel_for. Throws Error unless 1 <= n <= kMaxThreads.
void set_num_threads(int n);

// Runs fn(begin, end) over [0, n) in contiguous pieces of at least `grain`. Runs inline when one piece is enough,
// inside another parallel_for, and in a OneThread scope. When all pieces have run, rethrows the first exception of a
// piece. Which thread runs which piece, and how many pieces there are, is not specified; results must not depend on it.
// All pieces run with the caller's floating-point settings (floating_point_scope.h).
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

// Note [Threads]
// Rondo starts these threads, and no others, not even for compiling:
// - the threads of this pool: at most num_threads() - 1, with the first op that needs them;
// - the workers of a DataLoader, which end with the DataLoader;
// - the threads of a ProcessGroup (dist/groups/process_group.h).
// These threads block no signals and install no handlers, so a host that wants its signals on one thread blocks the
// signals before Rondo starts threads. A child process after fork() starts threads of its own. The child may use the
// library if no other thread was inside the library at the fork.
//
// Calls may run at the same time if they share no tensor, module, optimizer, loader or generator. Two models in
// two threads, each with its optimizer, give the same bits as one after the other. Beyond that:
//
// | object                                                   | several threads at once                              |
// |----------------------------------------------------------|------------------------------------------------------|
// | Tensor: handles, reading values, ops that only read      | yes                                                  |
// | Tensor: writing values, backward() into the same leaves  | no                                                   |
// | modules, optimizers, Trainer, KVCache, BatchSource       | no; Trainer::cancel() and progress() yes             |
// | tokenizers, Dataset::get(), TokenData                    | yes                                                  |
// | Generator                                                | no; each thread has its own default_generator()      |
// | loading and saving files, compile_regions of two models  | yes                                                  |
// | a handle of the C API (rondo_c.h)                        | yes: calls wait for each other                       |
//
// Example: one thread trains a model, another one shows text that the model generates. Either the training thread
// generates it (in a callback of the Trainer), or the other thread waits until training pauses.
//
// Settings of one thread: gradient mode, autocast, default_generator(), OneThread, error frames, EagerScope. A new
// thread begins with the defaults.
// Settings of the process: set_num_threads(), allocator::set_cache_limit(), memory::set_limit(), memory::Recording (one
// at a time), compile::set_stance(), compile::log, the caches of kernels. They hold for all models.
