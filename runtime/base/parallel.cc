#include "rondo/runtime/base/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfenv>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/usable_cores.h"

namespace rondo {
namespace {

// ---- The number of threads

// Returns the number of threads from RONDO_NUM_THREADS or OMP_NUM_THREADS; nullopt if neither gives one.
std::optional<int> given_threads() {
  const auto number = [](const char* text, char end_of_number) -> std::optional<int> {
    int n = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), n);
    const bool ends = *end == 0 || *end == end_of_number;
    return error == std::errc() && ends && n >= 1 && n <= kMaxThreads ? std::optional(n) : std::nullopt;
  };
  if (const char* const own = std::getenv("RONDO_NUM_THREADS"); own != nullptr && *own != 0) {
    const std::optional<int> n = number(own, 0);
    if (!n) throw Error(absl::StrCat("RONDO_NUM_THREADS=", own, " is not a number from 1 to ", kMaxThreads));
    return n;
  }
  const char* const shared = std::getenv("OMP_NUM_THREADS");
  return shared == nullptr ? std::nullopt : number(shared, ',');
}

int default_threads() { return given_threads().value_or(std::min(usable_cores(), kMaxThreads)); }

std::atomic<int> threads{0};  // 0: not yet known
thread_local bool inside = false;

// ---- The pool

// How often a waiting thread polls before it sleeps: about 50 us. To wake a thread takes 2 us of the waker's time, and
// the thread runs 5 to 50 us later; most ops of a training step follow each other faster than that. libgomp spins for
// milliseconds, so other processes lose a core to threads that only wait.
constexpr int kSpins = 1500;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when `word` is no longer `value`. Spins first, then sleeps.
void await_change(const std::atomic<uint32_t>& word, uint32_t value) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    pause();
  }
  word.wait(value, std::memory_order_acquire);
}

using PieceFn = absl::FunctionRef<void(uint32_t piece)>;

// Note [Claims]. A job's pieces are split into one range for each thread. A thread claims pieces of its own range, then
// those of the others. A claim is a compare-exchange on the range's word, and everything else about a job is read after
// a successful claim: a job cannot end, and its memory cannot change, while a claimed piece is not done. So a late
// thread may safely look at the ranges of a later job: it finds nothing to claim, or it helps with that job.
//
// Note [Weak memory order]. ARM may make a thread's writes visible in another order than x86 does. All data that
// threads share without a mutex was reviewed for that:
// - this pool: the caller writes the job, then the words of the ranges (release). A claim (acquire) reads a word that
//   the caller or an earlier claim of the same job wrote, so it sees the job. The decrements of left_ (release) and the
//   caller's last read (acquire) order the results. Reads before a claim (ranges_used_, words) only say where to look.
// - pointers that are set once (the pool, tables of devices, states and modules of CUDA, copies of parameters, the
//   plug-in) use release and acquire. Reference counts: the last owner acquires what the other owners have released.
// - flags that pieces of a kernel set (a bad index, the worst value of an anomaly, a row of any() or all() whose result
//   is known) are relaxed: the result is read only after the job is done.
// - statistics, limits, log levels and settings for tests are relaxed: a thread may see an old value for a moment.
// - machine code: the compiling thread writes the code, cleans the caches (place_object()), makes the code executable,
//   and then hands it on under a mutex.
// Everything else is sequentially consistent or under a mutex. TSan runs this code on x86 (tests/nightly.sh tsan).
class Pool {
 public:
  // Ends the threads. REQUIRES: the pool is acquired, and is never released again.
  void end() {
    stop_.store(true, std::memory_order_release);
    for (int i = 0; i < started_; ++i) wake(workers_[static_cast<size_t>(i)]);
    for (int i = 0; i < started_; ++i) workers_[static_cast<size_t>(i)]->thread.join();
  }

  // Returns true if this thread has acquired the pool. Only then may it run a job.
  bool try_acquire() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }

  // Runs all pieces on up to `threads` threads. REQUIRES: the pool is acquired, 2 <= threads <= pieces. run() may not
  // throw an exception.
  void run(int threads, uint32_t pieces, PieceFn run) {
    threads = std::min(threads, start(threads - 1) + 1);
    run_ = &run;
    settings_ = FloatingPointState::of_this_thread();
    left_.store(pieces, std::memory_order_relaxed);
    ranges_used_.store(threads, std::memory_order_relaxed);
    for (int t = 0; t < threads; ++t) {
      const auto bound = [&](int at) { return static_cast<uint64_t>(pieces) * at / threads; };
      ranges_[static_cast<size_t>(t)].word.store(bound(t) << 32 | bound(t + 1), std::memory_order_release);
    }
    for (int t = 1; t < threads; ++t) wake(workers_[static_cast<size_t>(t - 1)]);
    work(0);
    for (uint32_t left; (left = left_.load(std::memory_order_acquire)) != 0;) await_change(left_, left);
  }

 private:
  struct alignas(64) Worker {
    std::atomic<uint32_t> calls{0};
    std::thread thread;
  };
  struct alignas(64) Range {
    std::atomic<uint64_t> word{0};  // the next piece << 32 | the end
  };

  static void wake(Worker* worker) {
    worker->calls.fetch_add(1, std::memory_order_release);
    worker->calls.notify_one();
  }

  // Starts workers until there are `wanted`. Returns their number, which is smaller if the system refuses one.
  int start(int wanted) {
    while (started_ < wanted) {
      Worker* worker = nullptr;
      try {
        worker = new Worker;
        worker->thread = std::thread([this, worker, own = started_ + 1] { serve(*worker, own); });
      } catch (const std::exception&) {  // out of memory, or of threads
        delete worker;
        break;
      }
      workers_[static_cast<size_t>(started_++)] = worker;
    }
    return started_;
  }

  void serve(Worker& self, int own) {
    std::fesetenv(FE_DFL_ENV);  // a new thread inherits the state of its creator
    inside = true;
    for (uint32_t seen = 0; !stop_.load(std::memory_order_acquire);) {
      await_change(self.calls, seen);
      seen = self.calls.load(std::memory_order_acquire);
      work(own);
    }
  }

  // Runs pieces until none is left to claim.
  void work(int own) {
    const int ranges = ranges_used_.load(std::memory_order_relaxed);
    for (int i = 0; i < ranges; ++i) {
      std::atomic<uint64_t>& word = ranges_[static_cast<size_t>((own + i) % ranges)].word;
      for (uint64_t at = word.load(std::memory_order_relaxed); at >> 32 < (at & 0xFFFFFFFF);) {
        if (!word.compare_exchange_weak(at, at + (uint64_t{1} << 32), std::memory_order_acquire,
                                        std::memory_order_relaxed))
          continue;
        settings_.apply_settings();
        (*run_)(static_cast<uint32_t>(at >> 32));
        // The job may be gone after the last piece, so the lines below use only the pool.
        if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_all();
        at = word.load(std::memory_order_relaxed);
      }
    }
  }

  std::atomic<bool> busy_{false}, stop_{false};
  const PieceFn* run_ = nullptr;
  FloatingPointState settings_ = FloatingPointState::of_this_thread();  // the settings of the job's caller
  std::atomic<int> ranges_used_{0};
  alignas(64) std::atomic<uint32_t> left_{0};  // pieces that are not done yet
  std::array<Range, kMaxThreads> ranges_;
  std::array<Worker*, kMaxThreads> workers_{};
  int started_ = 0;  // guarded by busy_
};

// Holds the process's pool. Pools are never freed, because a thread may still be about to use one.
class PoolOwner {
 public:
  static PoolOwner& instance() {
    static PoolOwner* owner = new PoolOwner;
    return *owner;
  }
  // Returns null if there is no memory for the pool.
  Pool* get() {
    if (Pool* pool = pool_.load(std::memory_order_acquire)) return pool;
    std::lock_guard lock(mutex_);
    if (pool_.load(std::memory_order_relaxed) == nullptr)
      pool_.store(new (std::nothrow) Pool, std::memory_order_release);
    return pool_.load(std::memory_order_relaxed);
  }
  // Ends the pool's threads, unless another thread still uses the pool. Afterwards parallel_for runs inline.
  void end() {
    Pool* pool = pool_.load(std::memory_order_acquire);
    if (pool != nullptr && pool->try_acquire()) pool->end();
  }

 private:
  // A child process has none of its parent's threads, so it makes a pool of its own.
  PoolOwner() {
    pthread_atfork(nullptr, nullptr, [] {
      PoolOwner& owner = instance();
      new (&owner.mutex_) std::mutex;  // another thread of the parent may have held the old mutex
      owner.of_parent_ = owner.pool_.exchange(nullptr);
    });
  }
  std::mutex mutex_;
  std::atomic<Pool*> pool_{nullptr};
  Pool* of_parent_ = nullptr;
};

// Ends the pool's threads when the process ends, or when the shared library that holds their code is unloaded.
struct PoolEnd {
  ~PoolEnd() { PoolOwner::instance().end(); }
};

Pool* pool() {
  static const PoolEnd end;
  return PoolOwner::instance().get();
}

// Keeps the first exception of any piece. Later exceptions are dropped.
struct ErrorSlot {
  std::mutex mutex;
  std::exception_ptr error;
  void capture() {
    std::lock_guard lock(mutex);
    if (!error) error = std::current_exception();
  }
};

}  // namespace

int num_threads() {
  if (const int n = threads.load(std::memory_order_relaxed); n != 0) return n;
  int unknown = 0;
  threads.compare_exchange_strong(unknown, default_threads(), std::memory_order_relaxed);
  return threads.load(std::memory_order_relaxed);
}

std::string why_fewer_threads() {
  std::string why;
  if (!given_threads()) usable_cores(&why);
  return why;
}

void set_num_threads(int n) {
  if (n < 1 || n > kMaxThreads)
    throw Error(absl::StrCat("set_num_threads: ", n, " is not a number from 1 to ", kMaxThreads));
  threads.store(n, std::memory_order_relaxed);
}

bool in_parallel() { return inside; }

OneThread::OneThread() : was_inside_(std::exchange(inside, true)) {}
OneThread::~OneThread() { inside = was_inside_; }

void parallel_for(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (n <= 0) return;
  const int64_t most = (n + grain - 1) / std::max<int64_t>(grain, 1);
  if (most <= 1 || inside) return fn(0, n);
  const int64_t team = std::min<int64_t>(num_threads(), most);
  if (team <= 1) return fn(0, n);
  Pool* const shared = pool();
  if (shared == nullptr || !shared->try_acquire()) return fn(0, n);
  // Several pieces for each thread: if another process delays one thread, the other threads take its remaining pieces.
  constexpr int64_t kPiecesPerThread = 4;
  const int64_t pieces = std::min(most, team * kPiecesPerThread);
  ErrorSlot slot;
  const memory::Cause* const cause = memory::Cause::innermost();
  inside = true;
  shared->run(static_cast<int>(team), static_cast<uint32_t>(pieces), [&](uint32_t piece) {
    const memory::Cause::TakenOver of_caller(cause);  // allocations of a piece belong to the caller's op
    try {
      fn(n * piece / pieces, n * (piece + 1) / pieces);
    } catch (...) {
      slot.capture();
    }
  });
  inside = false;
  shared->release();
  if (slot.error) std::rethrow_exception(slot.error);
}

}  // namespace rondo
