#include "rondo/runtime/random.h"

#include <atomic>
#include <mutex>

namespace rondo {

namespace {

// What threads draw from that never called manual_seed themselves.
struct ProcessSeed {
  std::mutex mutex;  // guards `seed`
  uint64_t seed = 0;
  std::atomic<uint64_t> times{0};  // it was set
  std::atomic<uint64_t> threads{0};
};
ProcessSeed& process_seed() {
  static auto* seed = new ProcessSeed;
  return *seed;
}

struct ThreadSeed {
  uint64_t number = process_seed().threads.fetch_add(1);  // by first use
  // How often the process's seed was set when this thread took it. The first thread of an unseeded process draws from
  // (0, 0), as any Generator does; other threads never do.
  uint64_t times = number == 0 ? 0 : ~uint64_t{0};
  bool own = false;  // from manual_seed on this thread
};
ThreadSeed& thread_seed() {
  static thread_local ThreadSeed seed;
  return seed;
}

// A seed for thread `number`, unlike the process's seed itself.
uint64_t seed_of_thread(uint64_t seed, uint64_t number) {
  constexpr uint64_t kThreads = 0x7468726561647300u;
  const auto words = philox(seed ^ kThreads, number, kThreads);
  return static_cast<uint64_t>(words[0]) << 32 | words[1];
}

}  // namespace

Generator& default_generator() {
  static thread_local Generator generator;
  ThreadSeed& mine = thread_seed();
  ProcessSeed& process = process_seed();
  if (mine.own || process.times.load(std::memory_order_acquire) == mine.times) return generator;
  std::lock_guard lock(process.mutex);
  mine.times = process.times.load(std::memory_order_relaxed);
  generator.set_state(seed_of_thread(process.seed, mine.number), 0);
  return generator;
}

void manual_seed(uint64_t seed) {
  thread_seed().own = true;
  default_generator().set_state(seed, 0);
  ProcessSeed& process = process_seed();
  std::lock_guard lock(process.mutex);
  process.seed = seed;
  process.times.fetch_add(1, std::memory_order_release);
}

}  // namespace rondo
