#include "rondo/tests/fake_device/fake_device.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator.h"

namespace rondo::test {
namespace {

constexpr size_t kGuard = 64;
// Protection changes in steps of a huge page: its cost grows with the number of pages.
constexpr size_t kStep = size_t{2} << 20;
constexpr int64_t kMostQueued = 4096;
constexpr int kStreams = 3, kPoison = 0xFF, kGuardByte = 0xA5;
constexpr int kMostDevices = 4;

struct Event {
  bool passed = false;
  std::chrono::steady_clock::time_point time;
};
using SharedEvent = std::shared_ptr<Event>;

struct Item {
  absl::AnyInvocable<void()> work;  // null: an event
  SharedEvent signals, waits_for;
};

// This thread runs queued work.
thread_local bool running = false;

// backend.h, Note [Work].
void check_not_running(const char* function) {
  if (!running) return;
  std::fprintf(stderr, "FakeDevice: work that runs on the device called %s()\n", function);
  std::abort();
}

// Powers of two, then quarters of them: few sizes, so that blocks are used again and few pages change their protection.
size_t rounded(size_t bytes) {
  const size_t floor = std::bit_floor(std::max(bytes, kAlignment)), step = floor < 4096 ? floor : floor / 4;
  return (std::max(bytes, kAlignment) + step - 1) / step * step;
}

}  // namespace

// One device.
class FakeDevice::Queue {
 public:
  Queue(const FakeDeviceOptions& options, int index)
      : options_(options), index_(index), random_(options.seed * 1000 + static_cast<uint64_t>(index) + 1) {
    mapped_ = mmap(nullptr, options.bytes + kStep, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw Error("FakeDevice: no address space");
    const auto start = reinterpret_cast<uintptr_t>(mapped_);
    begin_ = reinterpret_cast<std::byte*>((start + kStep - 1) / kStep * kStep);
    madvise(begin_, options.bytes, MADV_HUGEPAGE);
  }
  ~Queue() { munmap(mapped_, options_.bytes + kStep); }

  bool contains(const void* address) const { return address >= begin_ && address < begin_ + options_.bytes; }

  // ---- Memory
  void* allocate(size_t bytes) {
    check_not_running("allocate");
    const std::lock_guard lock(mutex_);
    ++counts_.allocations;
    if (fail_in_ > 0 && --fail_in_ == 0)
      throw OutOfMemoryError(
          absl::StrCat("out of memory: the fake device was asked to fail at this allocation of ", bytes, " bytes"));
    const size_t size = rounded(bytes);
    std::vector<std::byte*>& free = free_[size];
    if (!free.empty()) {
      std::byte* block = free.back();
      free.pop_back();
      note_block(block, size);
      return block;
    }
    if (used_ + size + kGuard > options_.bytes)
      throw OutOfMemoryError(absl::StrCat("out of memory: the fake device has no ", bytes, " bytes left"));
    std::byte* block = begin_ + used_;
    used_ += size + kGuard;
    note_block(block, size);
    push(Stream::kCompute, [block, size] {
      std::memset(block, kPoison, size);
      std::memset(block + size, kGuardByte, kGuard);
    });
    return block;
  }
  void deallocate(void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto* block = static_cast<std::byte*>(data);
    const size_t size = rounded(bytes);
    --counts_.blocks_in_use;
    bytes_in_use_ -= static_cast<int64_t>(size);
    const bool guarded = options_.frees_in_stream_order;  // otherwise the guard may not be written yet
    const auto poison = [block, size, guarded] {
      for (size_t i = 0; guarded && i < kGuard; ++i)
        if (block[size + i] != static_cast<std::byte>(kGuardByte)) {
          std::fprintf(stderr, "FakeDevice: work wrote behind a block of %zu bytes\n", size);
          std::abort();
        }
      std::memset(block, kPoison, size);
    };
    if (running) poison();  // work that is done lets go of what it held
    else if (options_.frees_in_stream_order) push(Stream::kCompute, poison);
    else with_open_memory(poison);
    free_[size].push_back(block);
  }
  AllocatorStats stats() const {
    const std::lock_guard lock(mutex_);
    return {.bytes_in_use = bytes_in_use_,
            .peak_bytes = peak_,
            .allocations = counts_.allocations,
            .bytes_reserved = static_cast<int64_t>(used_)};
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = bytes_in_use_;
  }
  void trim() {  // pages stay
    const std::lock_guard lock(mutex_);
    ++counts_.trims;
  }

  // ---- Work
  void enqueue(Stream stream, absl::AnyInvocable<void()> work) {
    check_not_running("enqueue");
    const std::lock_guard lock(mutex_);
    ++counts_.launches;
    push(stream, std::move(work));
  }
  EventHandle record(Stream stream) {
    check_not_running("record");
    const std::lock_guard lock(mutex_);
    return new SharedEvent(push_event(stream));
  }
  void wait(Stream stream, EventHandle event) {
    check_not_running("wait");
    const std::lock_guard lock(mutex_);
    push_wait(stream, *static_cast<SharedEvent*>(event));
  }
  bool reached(EventHandle event) {
    check_not_running("reached");
    const std::lock_guard lock(mutex_);
    const SharedEvent& point = *static_cast<SharedEvent*>(event);
    if (!point->passed) run_a_few();  // time passes
    return point->passed;
  }
  double elapsed(EventHandle from, EventHandle to) {
    check_not_running("elapsed");
    const std::lock_guard lock(mutex_);
    const SharedEvent &first = *static_cast<SharedEvent*>(from), &last = *static_cast<SharedEvent*>(to);
    run_until([&] { return first->passed && last->passed; });
    return std::chrono::duration<double>(last->time - first->time).count();
  }
  void synchronize() {
    check_not_running("synchronize");
    const std::lock_guard lock(mutex_);
    ++counts_.host_waits;
    run_until([&] { return n_queued_ == 0; });
    rethrow();
  }
  bool failed() const {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  void drain() noexcept {
    const std::lock_guard lock(mutex_);
    run_until([&] { return n_queued_ == 0; });
    error_ = nullptr;
  }

  // ---- Copies
  void copy_in(void* to, const void* host, size_t bytes) {
    check_not_running("copy_in");
    const std::lock_guard lock(mutex_);
    ++counts_.copies_in;
    auto staged = std::make_unique<std::byte[]>(bytes);
    std::memcpy(staged.get(), host, bytes);
    absl::AnyInvocable<void()> copy = [to, bytes, from = std::move(staged)] { std::memcpy(to, from.get(), bytes); };
    if (options_.copy_in_waits_for_compute) push_wait(Stream::kCopy, push_event(Stream::kCompute));
    push(Stream::kCopy, std::move(copy));
    if (options_.compute_waits_for_copy_in) push_wait(Stream::kCompute, push_event(Stream::kCopy));
  }
  void copy_out(void* host, const void* from, size_t bytes) {
    check_not_running("copy_out");
    const std::lock_guard lock(mutex_);
    ++counts_.host_waits;
    push_wait(Stream::kCopy, push_event(Stream::kCompute));
    push(Stream::kCopy, [=] { std::memcpy(host, from, bytes); });
    const SharedEvent done = push_event(Stream::kCopy);
    run_until([&] { return done->passed; });
    rethrow();
  }

  FakeDeviceCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  int64_t queued() const {
    const std::lock_guard lock(mutex_);
    return n_queued_;
  }
  void fail_allocation(int64_t n) {
    const std::lock_guard lock(mutex_);
    fail_in_ = n;
  }

 private:
  void note_block(std::byte*, size_t size) {
    ++counts_.blocks_in_use;
    bytes_in_use_ += static_cast<int64_t>(size);
    peak_ = std::max(peak_, bytes_in_use_);
  }
  std::deque<Item>& items(Stream stream) { return streams_[static_cast<size_t>(stream)]; }
  void push(Stream stream, absl::AnyInvocable<void()> work) {
    items(stream).push_back({std::move(work), nullptr, nullptr});
    ++n_queued_;
    // Some work runs early, so that no order relies on a late queue.
    if (n_queued_ > kMostQueued) run_until([&] { return n_queued_ <= kMostQueued / 2; });
    else if (random_() < early_) run_a_few();
  }
  void run_a_few() {
    int64_t left = static_cast<int64_t>(random_() % 8);
    run_until([&] { return n_queued_ == 0 || left-- <= 0; });
  }
  SharedEvent push_event(Stream stream) {
    auto event = std::make_shared<Event>();
    items(stream).push_back({nullptr, event, nullptr});
    ++n_queued_;
    return event;
  }
  void push_wait(Stream stream, SharedEvent event) {
    if (event->passed) return;
    items(stream).push_back({nullptr, nullptr, std::move(event)});
    ++n_queued_;
  }
  // Sets the protection of the part that has been used.
  void protect(int protection) {
    open_ = std::min((used_ + kStep - 1) / kStep * kStep, options_.bytes);
    mprotect(begin_, open_, protection);
  }
  template <class F> void with_open_memory(F&& f) {
    protect(PROT_READ | PROT_WRITE);
    f();
    protect(PROT_NONE);
  }
  // Runs items, one at a time from a stream that chance picks, until `enough` or nothing is left.
  template <class Enough> void run_until(Enough enough) {
    if (enough() || n_queued_ == 0) return;
    protect(PROT_READ | PROT_WRITE);
    while (n_queued_ > 0 && !enough()) run_one();
    protect(PROT_NONE);
  }
  void run_one() {
    int ready[kStreams], n = 0;
    for (int s = 0; s < kStreams; ++s)
      if (!streams_[s].empty() && (streams_[s].front().waits_for == nullptr || streams_[s].front().waits_for->passed))
        ready[n++] = s;
    if (n == 0) {
      std::fprintf(stderr, "FakeDevice: streams wait for each other\n");
      std::abort();
    }
    std::deque<Item>& stream = streams_[ready[random_() % static_cast<uint64_t>(n)]];
    Item item = std::move(stream.front());
    stream.pop_front();
    --n_queued_;
    if (item.signals != nullptr) {
      item.signals->passed = true;
      item.signals->time = std::chrono::steady_clock::now();
    }
    if (!item.work) return;
    running = true;
    try {
      item.work();
    } catch (...) {
      if (error_ == nullptr) error_ = std::current_exception();
    }
    item.work = nullptr;  // what it holds goes while the memory is open
    running = false;
  }
  void rethrow() {
    if (error_ != nullptr) throw_late(std::exchange(error_, nullptr), {Backend::kFake, static_cast<int8_t>(index_)});
  }

  const FakeDeviceOptions options_;
  // FakeDeviceOptions::early of all numbers that random_ draws. A device does no arithmetic on the caller's thread,
  // which has a floating-point state of its own.
  const uint64_t early_ = options_.early >= 1 ? ~uint64_t{0} : static_cast<uint64_t>(options_.early * 0x1p64);
  const int index_;
  mutable std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  void* mapped_ = nullptr;
  std::byte* begin_ = nullptr;
  size_t used_ = 0, open_ = 0;
  std::map<size_t, std::vector<std::byte*>> free_;  // by size
  std::deque<Item> streams_[kStreams];
  int64_t n_queued_ = 0, bytes_in_use_ = 0, peak_ = 0, fail_in_ = 0;
  std::exception_ptr error_;
  FakeDeviceCounts counts_;
};

namespace {

std::unique_ptr<FakeDevice::Queue> queues[kMostDevices];
int n_devices = 0;
struct sigaction before;

FakeDevice::Queue& queue(int device) { return *queues[device]; }

// Async-signal-safe: says what happened, then lets the process end as it would have.
void on_fault(int signal, siginfo_t* info, void*) {
  for (int i = 0; i < n_devices; ++i)
    if (queues[i] != nullptr && queues[i]->contains(info->si_addr)) {
      constexpr char kMessage[] = "FakeDevice: host code touched device memory\n";
      static_cast<void>(!write(STDERR_FILENO, kMessage, sizeof kMessage - 1));
    }
  sigaction(SIGSEGV, &before, nullptr);
  raise(signal);
}

BackendTable fake_table = {
    .name = "fake",
    .host_memory = false,
    .kernels = Backend::kCPU,
    .generates = false,
    .device_count = [] { return n_devices; },
    .allocate = [](int device, size_t bytes) { return queue(device).allocate(bytes); },
    .deallocate = [](int device, void* data, size_t bytes) noexcept { queue(device).deallocate(data, bytes); },
    .block_bytes = &rounded,
    .stats = [](int device) { return queue(device).stats(); },
    .reset_peak = [](int device) { queue(device).reset_peak(); },
    .set_cache_limit = [](int, int64_t) {},
    .set_limit = [](int, int64_t) {},
    .limit = [](int) -> int64_t { return 0; },
    .count_purpose = [](int, Purpose, int64_t) noexcept {},
    .trim = [](int device) { queue(device).trim(); },
    .allocate_staging = [](int, size_t bytes) { return ::operator new(bytes); },
    .deallocate_staging = [](int, void* data, size_t) noexcept { ::operator delete(data); },
    .copy_in = [](int device, void* to, const void* host, size_t bytes) { queue(device).copy_in(to, host, bytes); },
    .copy_out = [](int device, void* host, const void* from,
                   size_t bytes) { queue(device).copy_out(host, from, bytes); },
    .copy = [](int device, void* to, const void* from,
               size_t bytes) { queue(device).enqueue(Stream::kCompute, [=] { std::memmove(to, from, bytes); }); },
    .copy_peer = nullptr,
    .fill = [](int device, void* to, uint8_t byte,
               size_t bytes) { queue(device).enqueue(Stream::kCompute, [=] { std::memset(to, byte, bytes); }); },
    .copy_staged = [](int device, Stream stream, void* to, const void* staging,
                      size_t bytes) { queue(device).enqueue(stream, [=] { std::memcpy(to, staging, bytes); }); },
    .enqueue = [](int device, Stream stream,
                  absl::AnyInvocable<void()> work) { queue(device).enqueue(stream, std::move(work)); },
    .record = [](int device, Stream stream) { return queue(device).record(stream); },
    .wait = [](int device, Stream stream, EventHandle event) { queue(device).wait(stream, event); },
    .release = [](int, EventHandle event) noexcept { delete static_cast<SharedEvent*>(event); },
    .reached = [](int device, EventHandle event) { return queue(device).reached(event); },
    .elapsed = [](int device, EventHandle from, EventHandle to) { return queue(device).elapsed(from, to); },
    .synchronize = [](int device) { queue(device).synchronize(); },
    .failed = [](int device) noexcept { return queue(device).failed(); },
    .call_library = nullptr,
    .place = [](int device) { return DevicePlace{.unit = absl::StrCat("fake device ", device), .bus = ""}; },
};

}  // namespace

FakeDevice::FakeDevice(FakeDeviceOptions options) {
  invariant(n_devices == 0 && options.devices >= 1 && options.devices <= kMostDevices, "FakeDevice: one at a time");
  for (int i = 0; i < options.devices; ++i) queues[i] = std::make_unique<Queue>(options, i);
  n_devices = options.devices;
  struct sigaction action {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before);
  fake_table.generates = options.generates;
  install_backend(Backend::kFake, &fake_table);
}

FakeDevice::~FakeDevice() {
  for (int i = 0; i < n_devices; ++i) queue(i).drain();
  install_backend(Backend::kFake, nullptr);
  sigaction(SIGSEGV, &before, nullptr);
  n_devices = 0;
  for (auto& queue : queues) queue.reset();
}

FakeDeviceCounts FakeDevice::counts(int index) const { return queue(index).counts(); }
void FakeDevice::fail_allocation(int64_t n, int index) { queue(index).fail_allocation(n); }
int64_t FakeDevice::queued(int index) const { return queue(index).queued(); }

}  // namespace rondo::test
