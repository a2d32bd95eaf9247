#include "rondo/tests/fake_cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace rondo::fake_cuda {
namespace {

constexpr size_t kPage = 4096, kAlignment = 256, kRange = size_t{1} << 36;
constexpr int kPoison = 0xFF, kGuard = 0xA5;

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }
// The pages of a block. It ends at the end of its last page, but for its alignment.
uintptr_t first_page(const Block& block) { return block.address / kPage * kPage; }
uintptr_t end_page(const Block& block) { return round_up(block.address + block.bytes, kPage); }

}  // namespace

Memory::Memory(int devices, size_t bytes, bool real) : bytes_(bytes), real_(real) {
  for (int i = 0; i < devices; ++i) {
    void* range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      std::fprintf(stderr, "fake CUDA: no address space\n");
      std::abort();
    }
    ranges_.push_back(static_cast<std::byte*>(range));
    next_.push_back(kPage);
    used_.push_back(0);
  }
}
Memory::~Memory() {
  for (std::byte* range : ranges_) munmap(range, kRange);
}

Block* Memory::allocate(int device, size_t bytes, bool open_later) {
  const auto d = static_cast<size_t>(device);
  if (used_[d] + bytes > bytes_) return nullptr;
  const size_t pages = round_up(bytes, kPage);
  if (next_[d] + pages + kPage > kRange) next_[d] = kPage;  // addresses are used again, the oldest first
  // All that stands there must be freed.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(ranges_[d]) + next_[d];
  for (auto at = blocks_.lower_bound(begin); at != blocks_.end() && at->first < begin + pages + kPage;) {
    if (at->second.live) return nullptr;
    at = blocks_.erase(at);
  }
  next_[d] += pages + kPage;
  used_[d] += bytes;
  Block block;
  block.address = begin + pages - round_up(bytes, kAlignment);
  block.bytes = bytes;
  block.device = device;
  block.open_later = open_later;
  Block& stored = blocks_[block.address] = std::move(block);
  if (!open_later) make_live(stored);
  return &stored;
}

void Memory::make_live(Block& block) {
  block.open_later = false;
  if (!real_) return;
  live_.insert(&block);
  protect(block, true);
  std::memset(reinterpret_cast<void*>(first_page(block)), kGuard, end_page(block) - first_page(block));
  std::memset(reinterpret_cast<void*>(block.address), kPoison, block.bytes);
  protect(block, (open_ >> block.device & 1) != 0);
}

bool Memory::release(Block& block) {
  if (!real_) {
    block.live = false;
    used_[static_cast<size_t>(block.device)] -= block.bytes;
    return true;
  }
  protect(block, true);
  bool whole = true;
  for (uintptr_t at = block.address + block.bytes; at < end_page(block); ++at)
    whole &= *reinterpret_cast<unsigned char*>(at) == kGuard;
  for (uintptr_t at = first_page(block); at < block.address; ++at)
    whole &= *reinterpret_cast<unsigned char*>(at) == kGuard;
  block.live = false;
  live_.erase(&block);
  used_[static_cast<size_t>(block.device)] -= block.bytes;
  const size_t length = end_page(block) - first_page(block);
  madvise(reinterpret_cast<void*>(first_page(block)), length, MADV_DONTNEED);
  protect(block, false);
  return whole;
}

void Memory::protect(const Block& block, bool open) {
  mprotect(reinterpret_cast<void*>(first_page(block)), end_page(block) - first_page(block),
           open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Block* Memory::find(uintptr_t address) {
  auto at = blocks_.upper_bound(address);
  if (at == blocks_.begin()) return nullptr;
  Block& block = std::prev(at)->second;
  return address < block.address + block.bytes ? &block : nullptr;
}

int Memory::device_of(uintptr_t address) const {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const auto begin = reinterpret_cast<uintptr_t>(ranges_[i]);
    if (address >= begin && address < begin + kRange) return static_cast<int>(i);
  }
  return -1;
}
bool Memory::contains(uintptr_t address) const { return device_of(address) >= 0; }

int64_t Memory::live_blocks() const {
  return std::count_if(blocks_.begin(), blocks_.end(), [](const auto& entry) { return entry.second.live; });
}

void Memory::forget_device(int device) {
  for (auto& [address, block] : blocks_)
    if (block.live && block.device == device) {
      if (block.open_later) {
        block.live = false;
        used_[static_cast<size_t>(device)] -= block.bytes;
      } else {
        release(block);
      }
    }
}

void Memory::open(unsigned devices) {
  if (devices == open_) return;
  for (const Block* block : live_) {
    const bool was = (open_ >> block->device & 1) != 0, is = (devices >> block->device & 1) != 0;
    if (was != is) protect(*block, is);
  }
  open_ = devices;
}

}  // namespace rondo::fake_cuda
