#include "rondo/tests/fake_cuda/machine.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "rondo/tests/fake_cuda/source.h"

namespace rondo::fake_cuda {
namespace {

constexpr int64_t kMostQueued = 4096;
struct sigaction before;
bool watching = false;
const char* running_name = nullptr;  // of the work that runs
int running_device = -1;

// Says what happened, then lets the process end as it would have. The process ends: no care for what is locked.
void on_fault(int signal, siginfo_t* info, void*) {
  Machine& machine = Machine::instance();
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (machine.memory != nullptr && machine.memory->contains(address)) {
    char text[512];
    const Block* block = machine.memory->find(address);
    const int device = machine.memory->device_of(address);
    if (running_name == nullptr)
      std::snprintf(text, sizeof text, "fake CUDA: host code touched memory of device %d\n", device);
    else if (block == nullptr)
      std::snprintf(text, sizeof text, "fake CUDA: %s touched memory of device %d that is no block\n", running_name,
                    device);
    else if (!block->live)
      std::snprintf(text, sizeof text, "fake CUDA: %s touched a freed block of %zu bytes of device %d\n", running_name,
                    block->bytes, device);
    else if (block->open_later)
      std::snprintf(text, sizeof text, "fake CUDA: %s touched a block before its stream has allocated it\n",
                    running_name);
    else if (device != running_device)
      std::snprintf(text, sizeof text, "fake CUDA: %s runs on device %d and touched memory of device %d\n",
                    running_name, running_device, device);
    else
      std::snprintf(text, sizeof text, "fake CUDA: %s touched closed memory: a callback of the host may not\n",
                    running_name);
    static_cast<void>(!write(STDERR_FILENO, text, std::strlen(text)));
  }
  sigaction(SIGSEGV, &before, nullptr);
  raise(signal);
}

}  // namespace

thread_local int Inside::depth_ = 0;
thread_local uint64_t Inside::start_ = 0, Inside::total_ = 0;
thread_local int64_t Inside::calls_ = 0;

namespace {
uint64_t steady() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());  // nanoseconds
}
const uint64_t steady_at_start = steady(), ticks_at_start = Inside::now();
}  // namespace

uint64_t Inside::now() {
#ifdef __x86_64__
  return __rdtsc();
#else
  return steady();
#endif
}

double Machine::seconds_inside() const {
  const auto nanoseconds = static_cast<double>(steady() - steady_at_start),
             ticks = static_cast<double>(Inside::now() - ticks_at_start);
  return static_cast<double>(Inside::total()) * (nanoseconds / ticks) * 1e-9;
}

ContextStack& context_stack() {
  thread_local constinit ContextStack stack;
  return stack;
}
bool& in_callback() {
  thread_local bool inside = false;
  return inside;
}

void MachineMutex::put_down(std::chrono::microseconds time) {
  const int depth = depth_;
  for (int i = 0; i < depth; ++i) unlock();
  std::this_thread::sleep_for(time);
  for (int i = 0; i < depth; ++i) lock();
}

Machine& Machine::instance() {
  static Machine* machine = new Machine;
  return *machine;
}

// ---- Control

void Machine::reset(const Options& chosen) {
  const std::lock_guard lock(mutex);
  options = chosen;
  if (on_reset) on_reset();
  count_traffic(chosen.counts_traffic);
  memory = std::make_unique<Memory>(chosen.devices, chosen.bytes, chosen.executes);
  races = {};
  host = {};
  initialized = gone = false;
  loader = nullptr;
  edit = nullptr;
  lt_oracle = nullptr;
  dnn_oracle = nullptr;
  contexts.clear();
  pools.clear();
  for (int i = 0; i < chosen.devices; ++i) {
    contexts.push_back(std::make_unique<cuda::OpaqueContext>());
    contexts.back()->device = i;
    pools.push_back(std::make_unique<cuda::OpaquePool>(i));
  }
  streams.clear();
  events.clear();
  modules.clear();
  handles.clear();
  for (const auto& [address, bytes] : pinned) munmap(reinterpret_cast<void*>(address), bytes);
  pinned.clear();
  counted = {};
  random_.seed(chosen.seed + 1);
  queued_ = fail_in_ = fails_left_ = 0;
  misuses_.clear();
  keeps_journal_ = false;
  journal_.clear();
  keeps_timeline_ = false;
  timeline_.clear();
  threads_.clear();
  noted_.reset();
  records_ = 0;
  counts_bytes_ = false;
  kernel_bytes_.clear();
  context_stack().clear();
  if (!watching) {
    struct sigaction action {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before);
    watching = true;
  }
}

void Machine::register_kernel(const std::string& name, Kernel kernel) {
  const std::lock_guard lock(mutex);
  kernels[name] = std::move(kernel);
}

std::string Machine::image(const std::vector<std::string>& names) const {
  std::string image = "fake CUDA image\n";
  for (const std::string& name : names) image += name + "\n";
  return image;
}

void Machine::fail_allocations(int64_t n, int64_t how_many, Memories kinds) {
  const std::lock_guard lock(mutex);
  failing_ = kinds;
  fail_in_ = n;
  fails_left_ = how_many;
}

void Machine::set_loader(Loader chosen) {
  const std::lock_guard lock(mutex);
  loader = std::move(chosen);
}
void Machine::set_edit(Edit chosen) {
  const std::lock_guard lock(mutex);
  edit = std::move(chosen);
}
void Machine::set_lt_oracle(LtOracle chosen) {
  const std::lock_guard lock(mutex);
  lt_oracle = std::move(chosen);
}
void Machine::set_dnn_oracle(DnnOracle chosen) {
  const std::lock_guard lock(mutex);
  dnn_oracle = std::move(chosen);
}
void Machine::shut_down() {
  const std::lock_guard lock(mutex);
  gone = true;
}

Counts Machine::counts() const {
  const std::lock_guard lock(mutex);
  Counts counts = counted;
  counts.blocks = memory == nullptr ? 0 : memory->live_blocks();
  counts.pinned = static_cast<int64_t>(pinned.size());
  return counts;
}
int64_t Machine::queued() const {
  const std::lock_guard lock(mutex);
  return queued_;
}
std::vector<std::pair<std::string, TrafficCount>> Machine::traffic() const { return counted_traffic(); }
std::vector<std::string> Machine::misuses() const {
  const std::lock_guard lock(mutex);
  return misuses_;
}

std::vector<Enqueued> Machine::take_journal() {
  const std::lock_guard lock(mutex);
  keeps_journal_ = true;
  return std::exchange(journal_, {});
}

Timeline Machine::take_timeline() {
  const std::lock_guard lock(mutex);
  keeps_timeline_ = true;
  return std::exchange(timeline_, {});
}
int Machine::thread_number() {
  return threads_.try_emplace(std::this_thread::get_id(), static_cast<int>(threads_.size())).first->second;
}
void Machine::note_time(TimedWork::Kind kind, const cuda::OpaqueStream& stream, uint64_t event) {
  if (keeps_timeline_)
    timeline_.push_back({.kind = kind,
                         .stream = stream.number,
                         .device = stream.context->device,
                         .event = event,
                         .thread = thread_number()});
}

void Machine::count_bytes() {
  const std::lock_guard lock(mutex);
  counts_bytes_ = true;
}
std::map<std::string, KernelBytes> Machine::take_kernel_bytes() {
  const std::lock_guard lock(mutex);
  return std::exchange(kernel_bytes_, {});
}

void Machine::note_bytes(const Launch& launch, const std::vector<size_t>& argument_bytes,
                         const cuda_on_host::Traffic& traffic) {
  constexpr int64_t kFirstCache = 32 << 10, kSector = cuda_on_host::Traffic::kSector;
  struct Operand {
    int64_t sectors = 0, requests = 0, bytes = 0;
  };
  std::map<uintptr_t, Operand> none{{0, {}}};  // by address
  for (size_t i = 0; i < argument_bytes.size(); ++i)
    for (size_t at = 0; at + sizeof(uintptr_t) <= argument_bytes[i]; at += sizeof(uintptr_t)) {
      uintptr_t word;
      std::memcpy(&word, static_cast<const std::byte*>(launch.args[i]) + at, sizeof word);
      if (memory->contains(word)) none[word / kSector * kSector];
    }
  KernelBytes& total = kernel_bytes_[launch.name];
  ++total.launches;
  for (const auto* touched : {&traffic.loaded, &traffic.stored}) {
    std::map<uintptr_t, Operand> operands = none;
    for (const auto& [sector, of_sector] : *touched) {
      Operand& operand = std::prev(operands.upper_bound(sector * kSector))->second;
      ++operand.sectors;
      operand.requests += of_sector.requests;
      operand.bytes += std::popcount(of_sector.bytes);
    }
    for (const auto& [address, operand] : operands) {
      const bool once = touched == &traffic.loaded && kSector * operand.sectors <= kFirstCache;
      total.touched += kSector * operand.sectors;
      total.moved += kSector * (once ? operand.sectors : operand.requests);
      total.ideal += operand.bytes;
    }
  }
}

std::function<void()> Machine::noted(Enqueued what, std::function<void()> work) {
  if (keeps_timeline_) noted_ = what;
  if (keeps_journal_) journal_.push_back(std::move(what));
  return options.executes ? std::move(work) : [] {};
}

// ---- Memory

cuda::Result Machine::misuse(cuda::Result result, const std::string& what) {
  const std::string text = std::string(call) + ": " + what;
  if (options.aborts) {
    std::fprintf(stderr, "fake CUDA: %s\n", text.c_str());
    std::abort();
  }
  misuses_.push_back(text);
  return result;
}

bool Machine::fails_now(Memories kind) {
  ++counted.allocations;
  if ((failing_ & kind) == 0) return false;
  if (fail_in_ > 1) {
    --fail_in_;
    return false;
  }
  if (fail_in_ == 0 || fails_left_ == 0) return false;
  if (--fails_left_ == 0) fail_in_ = 0;
  return true;
}

cuda::Result Machine::require_device_range(const cuda::OpaqueContext& context, uintptr_t address, size_t bytes,
                                           const std::string& what) {
  const Block* block = memory->find(address);
  const int device = memory->device_of(address);
  const auto size = std::to_string(bytes) + " bytes";
  if (device < 0) return misuse(cuda::Result::kInvalidValue, what + " is no device memory (" + size + ")");
  if (block == nullptr)
    return misuse(cuda::Result::kInvalidValue, what + " lies in no block of device " + std::to_string(device));
  if (!block->live || block->freed_by_call)
    return misuse(cuda::Result::kInvalidValue, what + " is used after it was freed");
  if (address + bytes > block->address + block->bytes)
    return misuse(cuda::Result::kInvalidValue,
                  what + " of " + size + " goes beyond its block of " + std::to_string(block->bytes));
  if (device != context.device && (context.peers >> device & 1) == 0)
    return misuse(cuda::Result::kInvalidValue, what + " is memory of device " + std::to_string(device) +
                                                   ", and the work runs on device " + std::to_string(context.device));
  return cuda::Result::kSuccess;
}

bool Machine::is_pinned(uintptr_t address, size_t bytes) const {
  const auto at = pinned.upper_bound(address);
  if (at == pinned.begin()) return false;
  const auto& [begin, size] = *std::prev(at);
  return address + bytes <= begin + size;
}

std::string Machine::name_of(const cuda::OpaqueContext& context) const {
  return "device " + std::to_string(context.device);
}

void Machine::release_context(cuda::OpaqueContext& context) {
  for (const auto& stream : streams)
    if (stream->context == &context) {
      queued_ -= static_cast<int64_t>(stream->items.size());
      counted.streams -= stream->alive;
      stream->items.clear();
      stream->alive = false;
    }
  for (const auto& event : events)
    if (event->context == &context) counted.events -= std::exchange(event->alive, false);
  for (const auto& module : modules)
    if (module->context == &context) counted.modules -= std::exchange(module->alive, false);
  memory->forget_device(context.device);
  context.peers = 0;
  context.dead = cuda::Result::kSuccess;
}

// ---- Work

Work Machine::next_work(const cuda::OpaqueStream& stream, const std::string& name) const {
  return {stream.number, stream.clock[stream.number] + 1,
          name + " (stream " + std::to_string(stream.number) + ", " + name_of(*stream.context) + ")"};
}

cuda::Result Machine::push(cuda::OpaqueStream& stream, const std::string& name, const std::vector<Access>& accesses,
                           std::function<void()> work, bool touches_memory, std::function<bool()> may_run) {
  const Work self = next_work(stream, name);
  stream.clock.merge(host);
  stream.clock.tick(stream.number);
  for (const Access& access : accesses)
    if (const std::string race = races.note(reinterpret_cast<uintptr_t>(access.address), access.bytes, access.writes,
                                            self, stream.clock);
        !race.empty())
      return misuse(cuda::Result::kInvalidValue, race);
  if (noted_.has_value()) {
    TimedWork timed{.kind = TimedWork::Kind::kWork, .stream = stream.number, .device = stream.context->device};
    timed.what = std::move(*noted_);
    timed.thread = thread_number();
    for (const Access& access : accesses) timed.declared += static_cast<int64_t>(access.bytes);
    timeline_.push_back(std::move(timed));
    noted_.reset();
  }
  stream.items.push_back({name, std::move(work), nullptr, nullptr, touches_memory, std::move(may_run)});
  return note_queued();
}

cuda::Result Machine::note_queued() {
  ++queued_;
  // Some work runs early, so that no order relies on a late queue.
  if (queued_ > kMostQueued) {
    run_until([&] { return queued_ <= kMostQueued / 2; });
  } else if (std::uniform_real_distribution<>(0, 1)(random_) < options.early) {
    int64_t left = static_cast<int64_t>(random_() % 8);
    run_until([&] { return left-- <= 0; });
  }
  return cuda::Result::kSuccess;
}

Machine::Turn Machine::run_any() {
  std::vector<cuda::OpaqueStream*> ready;
  bool waiting = false;
  for (const auto& stream : streams) {
    if (stream->items.empty()) continue;
    const auto& first = stream->items.front();
    if (first.waits_for == nullptr || first.waits_for->passed) ready.push_back(stream.get());
    else waiting = true;
  }
  const bool some = !ready.empty();
  while (!ready.empty()) {
    cuda::OpaqueStream*& chosen = ready[random_() % ready.size()];
    const auto& may_run = chosen->items.front().may_run;
    if (!may_run || chosen->context->dead != cuda::Result::kSuccess || may_run()) {
      run_one(*chosen);
      return Turn::kRan;
    }
    chosen = ready.back();
    ready.pop_back();
  }
  if (some) return Turn::kAllWait;
  if (waiting) {
    std::fprintf(stderr, "fake CUDA: streams wait for each other\n");
    std::abort();
  }
  return Turn::kNothingQueued;
}

void Machine::run_one(cuda::OpaqueStream& stream) {
  cuda::OpaqueStream::Item item = std::move(stream.items.front());
  stream.items.pop_front();
  --queued_;
  if (item.signals != nullptr) {
    item.signals->passed = true;
    item.signals->time = std::chrono::steady_clock::now();
  }
  cuda::OpaqueContext& context = *stream.context;
  // After an error that kills a context, nothing of it runs (manual: CUresult, CUDA_ERROR_ILLEGAL_ADDRESS).
  if (!item.work || context.dead != cuda::Result::kSuccess) return;
  if (!options.faulty.empty() && item.name == "kernel " + options.faulty) {
    context.dead = cuda::Result::kIllegalAddress;
    return;
  }
  if (item.touches_memory) memory->open(1u << context.device | context.peers);
  else memory->close();
  running_ = true;
  running_name = item.name.c_str();
  running_device = context.device;
  try {
    item.work();
  } catch (const DeviceFault& fault) {
    context.dead = static_cast<cuda::Result>(fault.result);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fake CUDA: %s: %s\n", item.name.c_str(), error.what());
    std::abort();
  }
  running_name = nullptr;
  running_ = false;
}

void Machine::run_until(const std::function<bool()>& enough) {
  if (running_) return;
  while (!enough() && run_any() == Turn::kRan) {
  }
  memory->close();
}

void Machine::wait_until(const std::function<bool()>& enough) {
  if (running_) return;
  while (!enough()) {
    const Turn turn = run_any();
    if (turn == Turn::kNothingQueued) break;
    if (turn == Turn::kAllWait) let_others();
  }
  memory->close();
}

void Machine::wait_for_others(const std::function<bool()>& enough) {
  while (!enough())
    if (run_any() != Turn::kRan) let_others();
  memory->close();
}

void Machine::let_others() {
  memory->close();
  const char* const mine = call;
  mutex.put_down(std::chrono::microseconds(50));
  call = mine;
}

// A device works on while its process does something else. Late: the pauses are long beside the work.
void Machine::run_in_background() {
  if (std::exchange(in_background_, true)) return;
  process_ = getpid();
  std::atexit([] { instance().end_background(); });  // if the main thread has never called the driver
  std::thread([this] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      const Inside inside;
      const std::lock_guard lock(mutex);
      if (exits_) return;
      if (memory == nullptr || gone || queued_ == 0) continue;
      auto left = static_cast<int64_t>(1 + random_() % 64);
      run_until([&] { return left-- <= 0; });
    }
  }).detach();
}

// What work uses is destroyed at exit(), in the reverse order of its making: that of oneDNN is made by the first
// product. The main thread's thread_local objects go before all of it.
void Machine::end_background() {
  if (getpid() != process_) return;  // there is none; or after fork() the lock may be one that nobody puts down
  const std::lock_guard lock(mutex);
  exits_ = true;
}
void end_background_with_main_thread() {
  struct End {
    ~End() {
      if (gettid() == getpid()) Machine::instance().end_background();
    }
  };
  thread_local const End end;
  static_cast<void>(&end);
}

void Machine::run_some() {
  int64_t left = 1 + static_cast<int64_t>(random_() % 4);
  run_until([&] { return left-- <= 0; });
}

}  // namespace rondo::fake_cuda

extern "C" __attribute__((visibility("default"))) rondo::fake_cuda::Control* fake_cuda_control() {
  return &rondo::fake_cuda::Machine::instance();
}
