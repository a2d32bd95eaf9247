#include "rondo/tests/cuda_on_host/machine.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "rondo/tests/cuda_on_host/fiber.h"
#include "rondo/tests/cuda_on_host/traffic.h"

#if RONDO_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace rondo::cuda_on_host {

// The build says what kernels are compiled with.
#if defined(RONDO_KERNELS_ASAN)
const Sanitizer kSanitizer = Sanitizer::kAddress;
#elif RONDO_FIBER_TSAN
const Sanitizer kSanitizer = Sanitizer::kThread;
#else
const Sanitizer kSanitizer = Sanitizer::kNone;
#endif

namespace {

constexpr int kMaxThreads = 1024;

// Not Abseil's: the fake's library is all of its own, wherever Abseil's archives cannot be part of a library.
template <class... Parts> std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

enum class State : uint8_t { kReady, kAtBlockBarrier, kAtWarpBarrier, kAtShuffle, kDone };

// A thread of the block.
struct Thread {
  Fiber fiber;
  Fiber* on = nullptr;  // whose stack it runs on: its own fiber's, or the carrier's
  State state = State::kDone;
  int line = 0;  // of the barrier or shuffle
  unsigned mask = 0;
  int from_lane = 0;
  uint64_t value = 0;
};

// The machine that is running. Fibers touch nothing but this and their own Thread: no code that others could share.
struct Running {
  View view;
  void (*call)(void** parameters) = nullptr;
  void** parameters = nullptr;
  Fiber scheduler;
  // Runs threads one after the other, as plain calls. The first that stops keeps this stack; those behind it run on
  // their own.
  Fiber carrier;
  const int *next = nullptr, *end = nullptr;  // the threads that the carrier has to begin
  Thread* threads = nullptr;
  Thread* current = nullptr;
  // The fault of the thread that stopped last.
  enum class Wrong : uint8_t { kNothing, kGuard, kNowhere, kMisaligned } wrong = Wrong::kNothing;
  int wrong_line = 0, wrong_bytes = 0;
};
// Never destroyed, as the threads of a block: at exit() another thread may still run a kernel.
union Kept {
  Running machine;
  Kept() : machine() {}
  ~Kept() {}
} kept;
Running& running = kept.machine;
using Wrong = Running::Wrong;
// The addresses that TSan's happens-before relations are named after.
char block_began, block_left, block_met, warp_met[kMaxThreads / kWarp];

int index_of(const Thread* thread) { return static_cast<int>(thread - running.threads); }

void stop(State state, int line, unsigned mask) {
  Thread* const self = running.current;
  self->state = state;
  self->line = line;
  self->mask = mask;
  release(&block_left);
  Fiber::switch_to(*self->on, running.scheduler);
}

void sync_block(int line) {
  release(&block_met);
  stop(State::kAtBlockBarrier, line, 0);
  acquire(&block_met);
}
void sync_warp(unsigned mask, int line) {
  char* const met = &warp_met[index_of(running.current) / kWarp];
  release(met);
  stop(State::kAtWarpBarrier, line, mask);
  acquire(met);
}
// Moves a value, and orders no memory.
uint64_t shuffle(unsigned mask, uint64_t value, int from_lane, int line) {
  Thread* const self = running.current;
  self->value = value;
  self->from_lane = from_lane;
  stop(State::kAtShuffle, line, mask);
  return self->value;
}

void run_thread() {
  Fiber::arrived();
  for (;;) {
    acquire(&block_began);
    running.call(running.parameters);
    stop(State::kDone, 0, 0);
  }
}

void begin(Thread* thread, Fiber& on) {
  thread->on = &on;
  running.current = thread;
  running.view.thread = {static_cast<unsigned>(index_of(thread)), 0, 0};
}

void run_many() {
  Fiber::arrived();
  for (;;) {
    while (running.next != running.end) {
      Thread* const self = running.threads + *running.next++;
      begin(self, running.carrier);
      running.call(running.parameters);
      self->state = State::kDone;
    }
    Fiber::switch_to(running.carrier, running.scheduler);
  }
}

// Leaves the thread where it is, for good.
void misaligned(const void* /*address*/, int bytes, int line) {
  running.wrong = Wrong::kMisaligned;
  running.wrong_bytes = bytes;
  running.wrong_line = line;
  Fiber::switch_to(*running.current->on, running.scheduler);
}
std::vector<Access>* accesses = nullptr;
void count(const void* address, int bytes, int piece, int line, Place place) {
  accesses->push_back({index_of(running.current), line, piece, bytes, reinterpret_cast<uintptr_t>(address), place});
}

// ---- Accesses to guards

std::vector<std::pair<char*, char*>>& guards() {
  static std::vector<std::pair<char*, char*>> list;
  return list;
}

struct sigaction outer_action;
// Leaves the thread where it is, for good.
void on_bad_access(int signal, siginfo_t* info, void* context) {
  (void)context;
  if (running.current == nullptr) {
    sigaction(signal, &outer_action, nullptr);
    return;  // happens again
  }
  running.wrong = is_guard(info->si_addr) ? Wrong::kGuard : Wrong::kNowhere;
  Fiber::switch_to(*running.current->on, running.scheduler);
}
class BadAccesses {
 public:
  BadAccesses() {
    struct sigaction action = {};
    action.sa_sigaction = &on_bad_access;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &outer_action);
  }
  ~BadAccesses() { sigaction(SIGSEGV, &outer_action, nullptr); }
  BadAccesses(const BadAccesses&) = delete;
  BadAccesses& operator=(const BadAccesses&) = delete;
};

// ---- One launch

class Launch {
 public:
  Launch(const Kernel& kernel, const GridSize& grid, Order order, uint64_t seed, Traffic* traffic)
      : kernel_(kernel),
        grid_(grid),
        order_(order),
        random_(seed),
        all_(static_cast<size_t>(grid.threads)),
        traffic_(traffic) {
    std::iota(all_.begin(), all_.end(), 0);
    accesses = &accesses_;
    running.view.count = traffic == nullptr ? nullptr : &count;
  }
  ~Launch() {
    running.current = nullptr;
    running.view.count = nullptr;
    acquire(&block_left);  // after a fault, nothing of the block runs on
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void run() {
    running.view.block_dim = {static_cast<unsigned>(grid_.threads), 1, 1};
    running.view.grid_dim = {static_cast<unsigned>(grid_.x), static_cast<unsigned>(grid_.y), 1};
    std::vector<int64_t> blocks(static_cast<size_t>(grid_.x * grid_.y));
    std::iota(blocks.begin(), blocks.end(), 0);
    arrange(blocks);
    for (int64_t b : blocks) {
      running.view.block = {static_cast<unsigned>(b % grid_.x), static_cast<unsigned>(b / grid_.x), 0};
      run_block();
    }
  }

 private:
  template <class T> void arrange(std::vector<T>& list) {
    if (order_ == Order::kReverse) std::reverse(list.begin(), list.end());
    if (order_ == Order::kRandom || order_ == Order::kDrift) std::shuffle(list.begin(), list.end(), random_);
  }
  Thread& thread(int i) const { return running.threads[i]; }
  bool any(State state) const {
    return std::any_of(all_.begin(), all_.end(), [&](int i) { return thread(i).state == state; });
  }
  [[noreturn]] void fail(int at, const std::string& what) const {
    const ::cuda_on_host::Dim3& b = running.view.block;
    throw Fault(joined("kernel ", kernel_.name, ", block (", b.x, ", ", b.y, "), thread ", at, ": ", what));
  }

  void run_block() {
    fill_shared();
    for (int i : all_) {
      thread(i).state = State::kReady;
      thread(i).on = &thread(i).fiber;
    }
    release(&block_began);
    stops_ = 0;
    std::vector<int> turn = next_turn();
    // To TSan, threads on one stack would be one thread.
    bool done = false;
    if (!RONDO_FIBER_TSAN) done = run_on_carrier(turn) && turn.size() == all_.size();
    while (!done) {
      for (int i : turn)
        if (thread(i).state == State::kReady) run_until_it_stops(i);
      for (int first = 0; first < grid_.threads; first += kWarp) meet_in_warp(first);
      if (!any(State::kReady) && any(State::kAtBlockBarrier)) meet_in_block();
      done = !any(State::kReady);
      if (!done) turn = next_turn();
    }
    acquire(&block_left);
    check_shared();
    if (traffic_ != nullptr) add_traffic(accesses_, *traffic_);
    accesses_.clear();
  }

  // The threads that run now, each until it stops: all, or those of one warp.
  std::vector<int> next_turn() {
    std::vector<int> turn = all_;
    if (order_ == Order::kDrift) {
      const auto is_ready = [&](int i) { return thread(i).state == State::kReady; };
      if (stops_ == 0 ||
          std::none_of(all_.begin(), all_.end(), [&](int i) { return i / kWarp == warp_ && is_ready(i); })) {
        std::vector<int> ready;
        std::copy_if(all_.begin(), all_.end(), std::back_inserter(ready), is_ready);
        warp_ = ready[random_() % ready.size()] / kWarp;
        stops_ = random_() % 2 == 0 ? std::numeric_limits<int>::max() : 1 + static_cast<int>(random_() % 4);
      }
      --stops_;
      std::erase_if(turn, [&](int i) { return i / kWarp != warp_; });
    }
    arrange(turn);
    return turn;
  }

  // True if these threads ran to their end. Otherwise one stopped, and those behind it have not begun.
  bool run_on_carrier(const std::vector<int>& turn) {
    running.next = turn.data();
    running.end = running.next + turn.size();
    Fiber::switch_to(running.scheduler, running.carrier);
    const bool done = running.next == running.end && running.current->state == State::kDone;
    check_thread(index_of(std::exchange(running.current, nullptr)));
    running.next = running.end;
    return done;
  }

  void run_until_it_stops(int i) {
    begin(&thread(i), *thread(i).on);
    Fiber::switch_to(running.scheduler, *thread(i).on);
    running.current = nullptr;
    check_thread(i);
  }

  void check_thread(int i) const {
    switch (std::exchange(running.wrong, Wrong::kNothing)) {
      case Wrong::kNothing: return;
      case Wrong::kGuard: fail(i, "reads or writes outside of an operand");
      case Wrong::kNowhere: fail(i, "reads or writes where there is no operand at all");
      case Wrong::kMisaligned:
        fail(i, joined("an access of ", running.wrong_bytes, " bytes in line ", running.wrong_line,
                       " at an address that is no multiple of them"));
    }
  }

  // Lets go whoever's whole mask has come to the same barrier or shuffle.
  void meet_in_warp(int first) {
    const int last = std::min(first + kWarp, grid_.threads);
    for (int i = first; i < last; ++i) {
      const Thread& self = thread(i);
      if (self.state != State::kAtShuffle && self.state != State::kAtWarpBarrier) continue;
      const char* what = self.state == State::kAtShuffle ? "a shuffle" : "__syncwarp";
      const auto in_mask = [&](int lane) { return (self.mask >> lane & 1u) != 0; };
      if (!in_mask(i - first)) fail(i, joined(what, " with a mask that lacks the thread itself"));
      uint64_t values[kWarp] = {};
      for (int lane = 0; lane < kWarp; ++lane) {
        if (!in_mask(lane)) continue;
        const int other = first + lane;
        if (other >= last) fail(i, joined(what, " waits for lane ", lane, ", which the block does not have"));
        const Thread& t = thread(other);
        if (t.state != self.state || t.mask != self.mask || t.line != self.line)
          fail(i, joined(what, " in line ", self.line, " that lane ", lane, " of its mask does not reach"));
        values[lane] = t.value;
      }
      const State state = self.state;
      const unsigned mask = self.mask;
      for (int lane = 0; lane < kWarp; ++lane) {
        if ((mask >> lane & 1u) == 0) continue;
        Thread& t = thread(first + lane);
        if (state == State::kAtShuffle) {
          if ((mask >> t.from_lane & 1u) == 0)
            fail(first + lane,
                 joined("a shuffle in line ", t.line, " from lane ", t.from_lane, ", which is not in its mask"));
          t.value = values[t.from_lane];
        }
        t.state = State::kReady;
      }
    }
  }

  void meet_in_block() {
    const auto first = std::find_if(all_.begin(), all_.end(),
                                    [&](int i) { return thread(i).state == State::kAtBlockBarrier; });
    const int line = thread(*first).line;
    const auto there = std::count_if(all_.begin(), all_.end(), [&](int i) {
      return thread(i).state == State::kAtBlockBarrier && thread(i).line == line;
    });
    if (there != grid_.threads)
      fail(*first,
           joined("a __syncthreads in line ", line, " that only ", there, " of ", grid_.threads, " threads reach"));
    for (int i : all_) thread(i).state = State::kReady;
  }

  // 0xFF everywhere is NaN in every floating type.
  void fill_shared() const {
    const SharedMemory& s = kernel_.shared;
    if (s.begin == s.end) return;
    poison(false);
    std::memset(s.begin, 0xFF, static_cast<size_t>(s.end - s.begin));
    poison(true);
  }
  void check_shared() const {
    poison(false);
    for (char* const* guard = kernel_.shared.guards; guard != kernel_.shared.guards_end; ++guard)
      for (int i = 0; i < ::cuda_on_host::kGuardBytes; ++i)
        if ((*guard)[i] != '\xFF') fail(0, "a write beyond a variable in shared memory");
  }
  void poison([[maybe_unused]] bool on) const {
#if RONDO_FIBER_ASAN
    for (char* const* guard = kernel_.shared.guards; guard != kernel_.shared.guards_end; ++guard) {
      if (on) ASAN_POISON_MEMORY_REGION(*guard, ::cuda_on_host::kGuardBytes);
      else ASAN_UNPOISON_MEMORY_REGION(*guard, ::cuda_on_host::kGuardBytes);
    }
#endif
  }

  const Kernel& kernel_;
  const GridSize& grid_;
  const Order order_;
  std::mt19937_64 random_;
  std::vector<int> all_;
  int warp_ = 0, stops_ = 0;  // kDrift: which warp runs, and how often it may still stop
  Traffic* const traffic_;
  std::vector<Access> accesses_;  // of the block
};

}  // namespace

const View* view() { return &running.view; }

void launch(const Kernel& kernel, const GridSize& grid, void** parameters, Order order, uint64_t seed,
            Traffic* traffic) {
  if (grid.threads < 1 || grid.threads > kMaxThreads || grid.x < 1 || grid.y < 1)
    throw Fault(joined("kernel ", kernel.name, ": ", grid.x, " x ", grid.y, " blocks of ", grid.threads, " threads"));
  static Thread* threads = nullptr;
  static int started = 0;
  static bool carries = false;
  static std::thread::id caller;
  // Sanitizers know a fiber by the stack that it came from.
  if (std::exchange(caller, std::this_thread::get_id()) != std::this_thread::get_id()) {
    carries = false;
    started = 0;
    running.scheduler.is_of_caller();
  }
  if (threads == nullptr) {
    threads = new Thread[kMaxThreads];
    running.threads = threads;
    running.view.sync_block = &sync_block;
    running.view.sync_warp = &sync_warp;
    running.view.shuffle = &shuffle;
    running.view.misaligned = &misaligned;
  }
  for (; started < grid.threads; ++started) threads[started].fiber.start(&run_thread);
  if (!std::exchange(carries, true)) running.carrier.start(&run_many);
  running.call = kernel.call;
  running.parameters = parameters;
  const BadAccesses watch;
  try {
    Launch(kernel, grid, order, seed, traffic).run();
  } catch (const Fault&) {
    carries = false;
    started = 0;  // every thread stands somewhere in the kernel: none is used again as it is
    throw;
  }
}

// ---- DeviceBuffer

DeviceBuffer::DeviceBuffer(size_t bytes, Side side, size_t shift) : bytes_(bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inner = std::max(page, (bytes + shift + page - 1) / page * page);
  mapped_ = inner + 2 * page;
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<char*>(memory);
  std::memset(pages_ + page, 0xFF, inner);
  data_ = pages_ + page + (side == Side::kEnd ? inner - bytes - shift : shift);
  mprotect(pages_, page, PROT_NONE);
  mprotect(pages_ + page + inner, page, PROT_NONE);
  guards().emplace_back(pages_, pages_ + page);
  guards().emplace_back(pages_ + page + inner, pages_ + mapped_);
#if RONDO_FIBER_ASAN
  for_rest([](char* at, size_t n) { ASAN_POISON_MEMORY_REGION(at, n); });
#endif
}

DeviceBuffer::~DeviceBuffer() {
#if RONDO_FIBER_ASAN
  ASAN_UNPOISON_MEMORY_REGION(pages_, mapped_);
#endif
  munmap(pages_, mapped_);
  std::erase_if(guards(), [&](const auto& guard) { return guard.first >= pages_ && guard.first < pages_ + mapped_; });
}

template <class Use> void DeviceBuffer::for_rest(Use use) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char *const begin = pages_ + page, *const end = pages_ + mapped_ - page;
  use(begin, static_cast<size_t>(data_ - begin));
  use(data_ + bytes_, static_cast<size_t>(end - data_) - bytes_);
}

bool DeviceBuffer::is_intact() const {
  bool intact = true;
  for_rest([&](char* at, size_t n) {
#if RONDO_FIBER_ASAN
    ASAN_UNPOISON_MEMORY_REGION(at, n);
#endif
    for (size_t i = 0; i < n; ++i) intact = intact && at[i] == '\xFF';
#if RONDO_FIBER_ASAN
    ASAN_POISON_MEMORY_REGION(at, n);
#endif
  });
  return intact;
}

bool is_guard(const void* address) {
  const auto* at = static_cast<const char*>(address);
  return std::any_of(guards().begin(), guards().end(),
                     [&](const auto& guard) { return at >= guard.first && at < guard.second; });
}

}  // namespace rondo::cuda_on_host
