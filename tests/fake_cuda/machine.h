// The fake's state: contexts, streams as queues, and when their work runs. Work is queued, and runs when somebody
// waits, or earlier by chance; each stream runs in its own order, and between streams every order that events allow is
// possible: the seed chooses one. It runs on the thread that waits, under the one lock. Where all that is left waits
// for another process (a collective), that thread puts the lock down for a while, so that others can call.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "rondo/runtime/cuda/driver.h"
#include "rondo/tests/cuda_on_host/machine.h"
#include "rondo/tests/fake_cuda/control.h"
#include "rondo/tests/fake_cuda/memory.h"
#include "rondo/tests/fake_cuda/races.h"
#include "rondo/tests/fake_cuda/tsan.h"

// The objects that the driver's handles point to. They are kept after they are destroyed, so that a later use is seen.
namespace rondo::cuda {

struct OpaqueContext {
  int device = 0;
  int retained = 0;
  unsigned peers = 0;  // the devices whose memory it may access, a bit for each
  Result dead = Result::kSuccess;
};

struct OpaqueStream {
  struct Record;  // of an event
  struct Item {
    std::string name;
    std::function<void()> work;
    std::shared_ptr<Record> signals, waits_for;
    bool touches_memory = true;
    // Asked while the item is at the front of its stream: false means that it has to wait for another process or
    // communicator. Null: it never waits.
    std::function<bool()> may_run = {};
  };
  OpaqueContext* context = nullptr;
  size_t number = 0;
  bool alive = true;
  std::deque<Item> items;
  fake_cuda::Clock clock;
};

struct OpaqueStream::Record {
  bool passed = false;
  std::chrono::steady_clock::time_point time;
  fake_cuda::Clock clock;
  const OpaqueStream* stream = nullptr;
  uint64_t number = 0;  // in the timeline; the first is 1
};

struct OpaqueEvent {
  OpaqueContext* context = nullptr;
  bool timing = true, alive = true;
  std::shared_ptr<OpaqueStream::Record> last;
};

struct OpaqueFunction {
  OpaqueModule* module = nullptr;
  std::string name;
  std::shared_ptr<const fake_cuda::Kernel> kernel;
  int dynamic_shared = -1;     // what cuFuncSetAttribute() allowed; -1: it was not called
  std::vector<bool> constant;  // of each argument: it is a pointer to constants. Empty: not known
  bool writes(size_t argument) const { return argument >= constant.size() || !constant[argument]; }
};

struct OpaqueModule {
  OpaqueContext* context = nullptr;
  bool alive = true;
  std::map<std::string, OpaqueFunction> functions;
};

struct OpaquePool {
  int device = 0;
};

}  // namespace rondo::cuda

namespace rondo::fake_cuda {

// At exit() no work runs in the background any more, if the main thread has called this.
void end_background_with_main_thread();

// While one of them lives, this thread is in the fake: its time is counted, and TSan looks away (tsan.h).
class Inside {
 public:
  Inside() {
    begin_unseen();
    if (depth_++ == 0) {
      end_background_with_main_thread();
      start_ = now();
    }
  }
  ~Inside() {
    if (--depth_ == 0) {
      ++calls_;
      total_ += now() - start_;
    }
    end_unseen();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  static uint64_t total() { return total_; }
  static int64_t calls() { return calls_; }
  static uint64_t now();

 private:
  static thread_local int depth_;
  static thread_local uint64_t start_, total_;
  static thread_local int64_t calls_;
};

// A recursive mutex that a waiting thread puts down for a while, however often it holds it: other threads then call the
// driver, to abort what this one waits for.
class MachineMutex {
 public:
  void lock() {
    mutex_.lock();
    ++depth_;
  }
  void unlock() {
    --depth_;
    mutex_.unlock();
  }
  // REQUIRES: this thread holds it.
  void put_down(std::chrono::microseconds time);

 private:
  std::recursive_mutex mutex_;
  int depth_ = 0;  // of the thread that holds it
};

class Machine final : public Control {
 public:
  static Machine& instance();

  // ---- Control
  void reset(const Options& options) override;
  void register_kernel(const std::string& name, Kernel kernel) override;
  std::string image(const std::vector<std::string>& kernels) const override;
  void fail_allocations(int64_t n, int64_t how_many, Memories kinds) override;
  void set_loader(Loader loader) override;
  void set_edit(Edit edit) override;
  void set_lt_oracle(LtOracle oracle) override;
  void set_dnn_oracle(DnnOracle oracle) override;
  void shut_down() override;
  Counts counts() const override;
  int64_t queued() const override;
  double seconds_inside() const override;
  int64_t calls_inside() const override { return Inside::calls(); }
  std::vector<std::string> misuses() const override;
  std::vector<Enqueued> take_journal() override;
  Timeline take_timeline() override;
  void count_bytes() override;
  std::map<std::string, KernelBytes> take_kernel_bytes() override;
  std::vector<std::pair<std::string, TrafficCount>> traffic() const override;

  // ---- For the driver's functions. The lock is held.
  // Ends the process, or notes what is wrong and returns `result`.
  cuda::Result misuse(cuda::Result result, const std::string& what);
  bool fails_now(Memories kind);  // the next allocation
  // Work of a kernel, a product, a fill or a copy goes through this first: it is noted, and is none if none runs.
  std::function<void()> noted(Enqueued what, std::function<void()> work);
  // Enqueues work that touches these bytes. An error if it races with other work.
  cuda::Result push(cuda::OpaqueStream& stream, const std::string& name, const std::vector<Access>& accesses,
                    std::function<void()> work, bool touches_memory = true, std::function<bool()> may_run = {});
  // Notes an event or a wait in the timeline, if one is kept. `event`: the record's number; 0: none.
  void note_time(TimedWork::Kind kind, const cuda::OpaqueStream& stream, uint64_t event);
  uint64_t next_record() { return ++records_; }
  // The work that the next push() into a stream makes.
  Work next_work(const cuda::OpaqueStream& stream, const std::string& name) const;
  bool counts_bytes() const { return counts_bytes_; }
  // The record of a launch. Its operands begin where its arguments, of these sizes, point to.
  void note_bytes(const Launch& launch, const std::vector<size_t>& argument_bytes,
                  const cuda_on_host::Traffic& traffic);
  // After an item was put into a stream: some work may run.
  cuda::Result note_queued();
  // Runs what is queued until `enough`, or until nothing is left that can run.
  void run_until(const std::function<bool()>& enough);
  // The host waits: as run_until(), but where all that is left waits for another process, this thread waits for it, and
  // other threads call the driver meanwhile. Returns where the queue is empty.
  void wait_until(const std::function<bool()>& enough);
  // Work runs from now on although no thread calls the driver: other processes wait for it.
  void run_in_background();
  void end_background();
  // The host waits for something that no stream of this process leads to.
  void wait_for_others(const std::function<bool()>& enough);
  uint64_t random() { return random_(); }
  void run_some();  // one item, if one can run
  bool idle(const cuda::OpaqueStream& stream) const { return stream.items.empty(); }
  // The whole range lies in one live block of a device that this context may access. `what` names the caller's range.
  cuda::Result require_device_range(const cuda::OpaqueContext& context, uintptr_t address, size_t bytes,
                                    const std::string& what);
  // The whole range is page-locked.
  bool is_pinned(uintptr_t address, size_t bytes) const;
  std::string name_of(const cuda::OpaqueContext& context) const;
  void release_context(cuda::OpaqueContext& context);

  mutable MachineMutex mutex;
  Options options;
  std::unique_ptr<Memory> memory;
  Races races;
  Clock host;  // what the host has waited for
  bool initialized = false, gone = false;
  Loader loader;
  Edit edit;
  LtOracle lt_oracle;
  DnnOracle dnn_oracle;
  std::vector<std::unique_ptr<cuda::OpaqueContext>> contexts;  // the primary one of each device
  std::vector<std::unique_ptr<cuda::OpaquePool>> pools;
  std::vector<std::unique_ptr<cuda::OpaqueStream>> streams;
  std::vector<std::unique_ptr<cuda::OpaqueEvent>> events;
  std::vector<std::unique_ptr<cuda::OpaqueModule>> modules;
  std::unordered_set<const void*> handles;  // of all of them
  std::map<uintptr_t, size_t> pinned;
  std::map<std::string, Kernel> kernels;
  Counts counted;
  // Callbacks of the host that have run, which waits come after (tsan.h).
  char callbacks_done = 0;
  const char* call = "";  // the driver's function that runs
  // What else is forgotten with reset().
  std::function<void()> on_reset;

 private:
  enum class Turn { kRan, kNothingQueued, kAllWait };
  void run_one(cuda::OpaqueStream& stream);
  Turn run_any();
  void let_others();
  std::mt19937_64 random_;
  int64_t queued_ = 0, fail_in_ = 0, fails_left_ = 0;
  Memories failing_ = kAllMemories;
  bool running_ = false;
  std::vector<std::string> misuses_;
  bool counts_bytes_ = false;
  std::map<std::string, KernelBytes> kernel_bytes_;
  bool keeps_journal_ = false;
  std::vector<Enqueued> journal_;
  bool keeps_timeline_ = false, in_background_ = false, exits_ = false;
  Timeline timeline_;
  std::optional<Enqueued> noted_;  // of the next push()
  uint64_t records_ = 0;
  std::map<std::thread::id, int> threads_;  // of the timeline
  std::atomic<pid_t> process_{0};           // that works in the background
  int thread_number();
};

// The contexts of this thread, the current one last. It has no destructor: objects of static lifetime call the driver
// after those of the main thread have gone.
class ContextStack {
 public:
  bool empty() const { return n_ == 0; }
  cuda::OpaqueContext* back() const { return contexts_[n_ - 1]; }
  void push(cuda::OpaqueContext* context) {
    if (n_ == std::size(contexts_)) {
      std::fprintf(stderr, "fake CUDA: a thread has pushed %zu contexts and popped none\n", n_);
      std::abort();
    }
    contexts_[n_++] = context;
  }
  void pop() { --n_; }
  void clear() { n_ = 0; }

 private:
  size_t n_ = 0;
  cuda::OpaqueContext* contexts_[64] = {};
};
ContextStack& context_stack();
}  // namespace rondo::fake_cuda
