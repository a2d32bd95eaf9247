#include "rondo/tests/guarded_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::test {
namespace {

constexpr int kCanary = 0xA5, kNaN = 0xFF;
constexpr size_t kGuardPages = 16;  // on each side: an access that is further off meets no other block by chance
constexpr size_t kMostSpare = 64 << 20;

struct Block {
  std::byte* pages;  // what may be written
  size_t page_bytes;
  std::byte* data;
  size_t bytes;
};

struct State {
  std::mutex mutex;
  std::unordered_map<const void*, Block> blocks;
  std::unordered_map<size_t, std::vector<std::byte*>> spare;  // by page_bytes
  size_t spare_bytes = 0;
  GuardedMemory::Side side = GuardedMemory::Side::kLeft;
  std::string what, damage;
  const BackendTable* original = nullptr;
  BackendTable table;
};
State& state() {
  static auto* state = new State;
  return *state;
}

size_t page() {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}
size_t round_up(size_t bytes, size_t step) { return (std::max<size_t>(bytes, 1) + step - 1) / step * step; }

std::byte* map(size_t page_bytes) {
  State& s = state();
  if (std::vector<std::byte*>& spare = s.spare[page_bytes]; !spare.empty()) {
    s.spare_bytes -= page_bytes;
    std::byte* const pages = spare.back();
    spare.pop_back();
    return pages;
  }
  const size_t guard = kGuardPages * page();
  void* const all = mmap(nullptr, page_bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                         0);
  if (all == MAP_FAILED) throw Error("GuardedMemory: no address space");
  std::byte* const pages = static_cast<std::byte*>(all) + guard;
  if (mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) != 0) throw Error("GuardedMemory: no memory");
  return pages;
}

void unmap(std::byte* pages, size_t page_bytes) {
  State& s = state();
  if (s.spare_bytes + page_bytes <= kMostSpare) {
    s.spare[page_bytes].push_back(pages);
    s.spare_bytes += page_bytes;
    return;
  }
  const size_t guard = kGuardPages * page();
  munmap(pages - guard, page_bytes + 2 * guard);
}

void* allocate(int, size_t bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const size_t page_bytes = round_up(bytes, page());
  std::byte* const pages = map(page_bytes);
  std::byte* const data = s.side == GuardedMemory::Side::kLeft ? pages
                                                               : pages + page_bytes - round_up(bytes, kAlignment);
  std::memset(pages, kCanary, static_cast<size_t>(data - pages));
  std::memset(data, kNaN, bytes);
  std::memset(data + bytes, kCanary, page_bytes - static_cast<size_t>(data - pages) - bytes);
  s.blocks.insert({data, {pages, page_bytes, data, bytes}});
  return data;
}

void deallocate(int device, void* data, size_t bytes) noexcept {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.blocks.find(data);
  if (found == s.blocks.end()) return s.original->deallocate(device, data, bytes);
  const Block block = found->second;
  s.blocks.erase(found);
  const auto check = [&](const std::byte* from, const std::byte* to) {
    const auto* const written = std::find_if(from, to, [](std::byte b) { return b != std::byte{kCanary}; });
    if (written != to)
      absl::StrAppend(&s.damage, "a write at byte ", written - block.data, " of a block of ", block.bytes, "; ");
  };
  check(block.pages, block.data);
  check(block.data + block.bytes, block.pages + block.page_bytes);
  unmap(block.pages, block.page_bytes);
}

// The process is lost, so what allocates memory here does no further harm.
void on_fault(int signal, siginfo_t* info, void*) {
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  std::string where = "not near any block";
  const size_t guard = kGuardPages * page();
  for (const auto& [data, block] : state().blocks)
    if (address >= block.pages - guard && address < block.pages + block.page_bytes + guard)
      where = absl::StrCat("byte ", address - block.data, " of a block of ", block.bytes);
  const std::string line = absl::StrCat("GuardedMemory: signal ", signal, ", ", where, ": ", state().what, "\n");
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  _exit(1);
}

}  // namespace

GuardedMemory::GuardedMemory() {
  State& s = state();
  if (s.original == nullptr) {
    s.original = &backend_of(kCPU);
    s.table = *s.original;
    s.table.deallocate = &deallocate;  // stays: blocks may outlive us
  }
  invariant(s.table.allocate != &allocate, "GuardedMemory: one at a time");
  s.table.allocate = &allocate;
  install_backend(Backend::kCPU, &s.table);
  struct sigaction action {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
}

GuardedMemory::~GuardedMemory() {
  for (const int signal : {SIGSEGV, SIGBUS}) ::signal(signal, SIG_DFL);
  state().table.allocate = state().original->allocate;
}

void GuardedMemory::place(Side side, const std::string& what) {
  state().side = side;
  state().what = what;
}

Tensor GuardedMemory::tensor(std::span<const double> values, const Dims& sizes, const Dims& strides, DType dtype) {
  int64_t extent = values.empty() ? 0 : 1;
  for (int d = 0; d < sizes.rank(); ++d) extent += std::max<int64_t>(sizes[d] - 1, 0) * strides[d];
  const size_t size = size_of(dtype), bytes = static_cast<size_t>(extent) * size;
  const Storage storage = Storage::allocate(round_up(bytes, kAlignment));
  const int64_t offset = state().side == Side::kLeft ? 0 : static_cast<int64_t>((storage.bytes() - bytes) / size);
  Tensor result = Tensor::from_storage(storage, offset, sizes, strides, dtype);
  if (!values.empty()) result.copy_(Tensor::from(values, sizes, kF64).to(dtype));
  return result;
}

std::string GuardedMemory::damage() { return std::exchange(state().damage, ""); }

}  // namespace rondo::test
