#include "rondo/runtime/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#ifndef RONDO_STD_THREADS
#include <omp.h>
#endif

namespace rondo {
namespace {

int default_threads() {
  if (const char* text = std::getenv("RONDO_NUM_THREADS")) {
    const int n = std::atoi(text);
    if (n > 0) return n;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<int> threads{0};
thread_local bool inside = false;

// First exception of any piece; the others are dropped.
struct ErrorSlot {
  std::mutex mutex;
  std::exception_ptr error;
  void capture() {
    std::lock_guard lock(mutex);
    if (!error) error = std::current_exception();
  }
};

// oneDNN does not go through parallel_for: it takes the calling thread's OpenMP setting.
void store_threads(int n) {
  threads.store(n, std::memory_order_relaxed);
#ifndef RONDO_STD_THREADS
  omp_set_num_threads(n);
#endif
}

}  // namespace

int num_threads() {
  if (threads.load(std::memory_order_relaxed) == 0) store_threads(default_threads());
  return threads.load(std::memory_order_relaxed);
}
void set_num_threads(int n) { store_threads(std::max(1, n)); }
bool in_parallel() { return inside; }

OneThread::OneThread() : was_inside_(std::exchange(inside, true)) {
#ifndef RONDO_STD_THREADS
  omp_set_num_threads(1);
#endif
}
OneThread::~OneThread() {
  inside = was_inside_;
#ifndef RONDO_STD_THREADS
  omp_set_num_threads(num_threads());
#endif
}

void parallel_for(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (n <= 0) return;
  const int64_t pieces = std::min<int64_t>(num_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (pieces <= 1 || inside) {
    fn(0, n);
    return;
  }
  ErrorSlot slot;
  auto run_piece = [&](int64_t piece) {
    inside = true;
    try {
      fn(n * piece / pieces, n * (piece + 1) / pieces);
    } catch (...) {
      slot.capture();
    }
    inside = false;
  };
#ifdef RONDO_STD_THREADS
  std::vector<std::thread> workers;
  for (int64_t piece = 1; piece < pieces; ++piece) workers.emplace_back(run_piece, piece);
  run_piece(0);
  for (std::thread& worker : workers) worker.join();
#else
#pragma omp parallel num_threads(static_cast <int>(pieces))
  // OpenMP may grant fewer threads than asked for.
  for (int64_t piece = omp_get_thread_num(); piece < pieces; piece += omp_get_num_threads()) run_piece(piece);
#endif
  if (slot.error) std::rethrow_exception(slot.error);
}

}  // namespace rondo
