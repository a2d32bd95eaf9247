#include "rondo/runtime/cuda/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <new>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/cuda/context.h"
#include "rondo/runtime/device/memory.h"

namespace rondo::cuda {
namespace {

// Blocks up to kSmall come from segments of kSmallSegment, so that they do not break up the large segments.
constexpr size_t kSmall = size_t{1} << 20, kSmallSegment = size_t{2} << 20;
// Larger blocks below kOwnSegment share segments of kSharedSegment bytes. Each block of kOwnSegment or more bytes has a
// segment of its own. Its size is rounded up to a multiple of kPage if memory allows.
constexpr size_t kOwnSegment = size_t{10} << 20, kSharedSegment = size_t{20} << 20, kPage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

bool caches() {
  const char* value = std::getenv("RONDO_CUDA_CACHE");
  return value == nullptr || std::string_view(value) != "0";
}

std::string megabytes(int64_t bytes) { return formatted("%.1f MB", static_cast<double>(bytes) * 1e-6); }

}  // namespace

size_t Allocator::block_bytes(size_t bytes) {
  if (bytes <= 8 * kStep) return round_up(std::max<size_t>(bytes, 1), kStep);
  return round_up(bytes, std::bit_floor(bytes - 1) / 8);
}

// Sizes up to 8 steps have a class each; larger sizes have eight classes for each power of two.
size_t Allocator::class_of(size_t size) {
  if (size <= 8 * kStep) return size / kStep - 1;
  const size_t below = std::bit_floor(size - 1);
  return 8 * static_cast<size_t>(std::bit_width(below) - std::bit_width(8 * kStep)) + 7 + 8 * (size - below) / below;
}

Allocator::Allocator(DeviceContext& device)
    : device_(device), caching_(caches()), cache_limit_(std::numeric_limits<int64_t>::max()) {}

Allocator::~Allocator() {
  const bool lost = device_.lost();  // then the memory is gone with the context
  for (const Segment& segment : segments_) {
    for (Block* block = segment.first; block != nullptr;) delete std::exchange(block, block->after);
    if (!lost) static_cast<void>(device_.driver().memory_free(segment.address));
  }
  if (!caching_ && !lost)
    for (const auto& [address, block] : used_) static_cast<void>(device_.driver().memory_free(address));
}

void* Allocator::allocate(size_t bytes) {
  const size_t size = block_bytes(bytes);
  if (size < bytes) throw OutOfMemoryError(absl::StrCat("out of memory: nothing has ", bytes, " bytes"));
  device_.drop_finished();  // this may free blocks
  std::unique_lock lock(mutex_);
  void* data = nullptr;
  if (caching_) {
    if (cached() > cache_limit_ && releasable_ > 0) [[unlikely]]
      release_free_segments(cache_limit_);
    if (size <= kSmall) {
      Waiting& waiting = waiting_[class_of(size)];
      if (waiting.n > 0) [[likely]]
        data = reinterpret_cast<void*>(waiting.blocks[--waiting.n]->address);
    }
    if (data == nullptr) data = take(size);
    if (data == nullptr) {
      free_waiting();
      data = take(size);
    }
    if (data == nullptr && add_segment(size)) data = take(size);
  } else {
    data = take_uncached(size);
  }
  if (data == nullptr) {
    lock.unlock();
    {
      const ContextScope scope(device_);
      device_.wait_all();
    }
    device_.drop_finished();
    lock.lock();
    // Free segments that the cache holds may be enough, once they are given back to the driver.
    release_free_segments(0);
    if (!caching_) data = take_uncached(size);
    else if ((data = take(size)) == nullptr && add_segment(size)) data = take(size);
  }
  if (data == nullptr) throw describe_exhausted(absl::StrCat("allocate ", bytes, " bytes"));
  in_use_ += static_cast<int64_t>(size);
  peak_ = std::max(peak_, in_use_);
  ++allocations_;
  return data;
}

void Allocator::deallocate(void* data, size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<DevicePtr>(data);
  const auto size = static_cast<int64_t>(block_bytes(bytes));
  const auto found = used_.find(address);
  if (found == used_.end()) return;  // the block's device was closed in the meantime
  Block* block = found->second;
  in_use_ -= size;
  if (!caching_) {
    used_.erase(found);
    reserved_ -= size;
    try {
      const ContextScope scope(device_);
      static_cast<void>(device_.driver().memory_free_async(address, device_.compute()));
    } catch (const Error&) {
      // The device is lost: so is the block.
    }
    return;
  }
  // Blocks wait only without a cache limit, because a waiting block cannot be given back to the driver.
  if (block->segment->small && cache_limit_ == std::numeric_limits<int64_t>::max()) [[likely]] {
    Waiting& waiting = waiting_[class_of(block->bytes)];
    if (waiting.n < Waiting::kMost) [[likely]] {
      waiting.blocks[waiting.n++] = block;
      return;
    }
  }
  free_block(block);
}

void Allocator::free_waiting() {
  for (Waiting& waiting : waiting_)
    while (waiting.n > 0) free_block(waiting.blocks[--waiting.n]);
}

void Allocator::free_block(Block* block) {
  used_.erase(block->address);
  FreeBlocks& free = free_[block->segment->small];
  FreeBlocks::node_type node = std::move(block->node);
  const auto forget = [&](Block* b) { free.erase({{b->bytes, b->address}, b}); };
  if (Block* after = block->after; after != nullptr && after->free) {
    forget(after);
    block->bytes += after->bytes;
    block->after = after->after;
    if (block->after != nullptr) block->after->before = block;
    delete after;
  }
  if (Block* before = block->before; before != nullptr && before->free) {
    forget(before);
    before->bytes += block->bytes;
    before->after = block->after;
    if (before->after != nullptr) before->after->before = before;
    delete block;
    block = before;
  }
  block->free = true;
  if (block->bytes == block->segment->bytes) releasable_ += static_cast<int64_t>(block->bytes);
  node.value() = {{block->bytes, block->address}, block};
  free.insert(std::move(node));
}

Allocator::FreeBlocks::node_type Allocator::place_of(Block* block) {
  FreeBlocks list{{{block->bytes, block->address}, block}};
  return list.extract(list.begin());
}

// Takes the smallest free block that is large enough, and splits off the rest of it. In segments of large blocks, a
// rest of less than kSmall bytes is not split off, because no request for a large block would fit into it.
void* Allocator::take(size_t size) {
  FreeBlocks& free = free_[size <= kSmall];
  const auto found = free.lower_bound({{size, 0}, nullptr});
  if (found == free.end()) return nullptr;
  Block* const block = found->second;
  // Allocates host memory first: if that throws, nothing has changed yet.
  std::unique_ptr<Block> rest;
  FreeBlocks::node_type place_of_rest;
  if (block->bytes - size >= (block->segment->small ? kStep : kSmall)) {
    rest.reset(new Block{block->segment, block->address + size, block->bytes - size, true, block, block->after, {}});
    place_of_rest = place_of(rest.get());
  }
  used_.try_emplace(block->address, block);
  block->node = free.extract(found);
  block->free = false;
  if (block->bytes == block->segment->bytes) releasable_ -= static_cast<int64_t>(block->bytes);
  if (rest != nullptr) {
    block->bytes = size;
    block->after = rest.get();
    if (rest->after != nullptr) rest->after->before = rest.get();
    free.insert(std::move(place_of_rest));
    static_cast<void>(rest.release());
  }
  return reinterpret_cast<void*>(block->address);
}

bool Allocator::add_segment(size_t size) {
  if (size <= kSmall) return add_segment_of(kSmallSegment, true) || add_segment_of(round_up(size, kStep), true);
  if (size < kOwnSegment && add_segment_of(kSharedSegment, false)) return true;
  return add_segment_of(round_up(size, kPage), false) || add_segment_of(size, false);
}

bool Allocator::add_segment_of(size_t bytes, bool small) {
  if (limit_ != 0 && reserved_ + static_cast<int64_t>(bytes) > limit_) return false;
  // These objects are allocated before the driver's memory. If host memory ran out afterwards, the driver's memory
  // would leak.
  std::list<Segment> made{{0, bytes, small, nullptr, {}}};
  Segment& segment = made.front();
  std::unique_ptr<Block> block(new Block{&segment, 0, bytes, true, nullptr, nullptr, {}});
  FreeBlocks::node_type place = place_of(block.get());
  const ContextScope scope(device_);
  DevicePtr address = 0;
  const Result result = device_.driver().memory_allocate(&address, bytes);
  if (result == Result::kOutOfMemory) return false;
  device_.check(result, "cuMemAlloc");
  segment.address = block->address = address;
  place.value() = {{bytes, address}, block.get()};
  free_[small].insert(std::move(place));
  segment.first = block.release();
  segment.self = made.begin();
  segments_.splice(segments_.end(), made);
  reserved_ += static_cast<int64_t>(bytes);
  releasable_ += static_cast<int64_t>(bytes);
  return true;
}

void* Allocator::take_uncached(size_t size) {
  if (limit_ != 0 && reserved_ + static_cast<int64_t>(size) > limit_) return nullptr;
  const ContextScope scope(device_);
  DevicePtr address = 0;
  const Result result = device_.driver().memory_allocate_async(&address, size, device_.compute());
  if (result == Result::kOutOfMemory) return nullptr;
  device_.check(result, "cuMemAllocAsync");
  try {
    used_.try_emplace(address, nullptr);
  } catch (const std::bad_alloc&) {
    static_cast<void>(device_.driver().memory_free_async(address, device_.compute()));
    throw;
  }
  reserved_ += static_cast<int64_t>(size);
  return reinterpret_cast<void*>(address);
}

void Allocator::release_free_segments(int64_t most) {
  free_waiting();
  const ContextScope scope(device_);
  device_.wait_all();
  if (!caching_) {
    PoolPtr pool = nullptr;
    device_.check(device_.driver().default_pool(&pool, device_.ordinal()), "cuDeviceGetDefaultMemPool");
    device_.check(device_.driver().pool_trim(pool, 0), "cuMemPoolTrimTo");
    return;
  }
  for (auto at = segments_.begin(); at != segments_.end() && cached() > most;) {
    Segment& segment = *at++;
    Block* block = segment.first;
    if (!block->free || block->bytes != segment.bytes) continue;
    device_.check(device_.driver().memory_free(segment.address), "cuMemFree");
    free_[segment.small].erase({{block->bytes, block->address}, block});
    reserved_ -= static_cast<int64_t>(segment.bytes);
    releasable_ -= static_cast<int64_t>(segment.bytes);
    delete block;
    segments_.erase(segment.self);
  }
}

OutOfMemoryError Allocator::out_of_memory(const std::string& request) const {
  const std::lock_guard lock(mutex_);
  return describe_exhausted(request);
}

OutOfMemoryError Allocator::describe_exhausted(const std::string& request) const {
  size_t free = 0, total = 0;
  {
    const ContextScope scope(device_);
    if (device_.driver().memory_info(&free, &total) != Result::kSuccess) free = total = 0;
  }
  const auto held = [&](Purpose purpose) { return purposes_[static_cast<size_t>(purpose)].load(); };
  const int64_t known = held(Purpose::kParameters) + held(Purpose::kGradients) + held(Purpose::kStates) +
                        held(Purpose::kActivations);
  size_t largest = 0;
  for (const FreeBlocks& blocks : free_)
    if (!blocks.empty()) largest = std::max(largest, blocks.rbegin()->first.first);
  const int64_t others = std::max<int64_t>(0, static_cast<int64_t>(total - free) - reserved_);
  return OutOfMemoryError(absl::StrCat(
      "out of memory on cuda:", device_.index(), " (", device_.name(), ", ",
      megabytes(static_cast<int64_t>(device_.total_memory())), "): cannot ", request, " for ",
      memory::Cause::describe(), ". In use: ", megabytes(in_use_), ", of that parameters ",
      megabytes(held(Purpose::kParameters)), ", gradients ", megabytes(held(Purpose::kGradients)),
      ", optimizer states ", megabytes(held(Purpose::kStates)), ", activations ",
      megabytes(held(Purpose::kActivations)), ", the rest ", megabytes(in_use_ - known),
      ". Freed but in pieces: ", megabytes(cached()), ", the largest ", megabytes(static_cast<int64_t>(largest)),
      ". Held by other libraries and programs: ", megabytes(others),
      limit_ == 0 ? std::string(".") : absl::StrCat(". The limit is ", megabytes(limit_), " (memory::set_limit)."),
      " Use a smaller batch, or activation checkpointing"));
}

AllocatorStats Allocator::stats() const {
  const std::lock_guard lock(mutex_);
  AllocatorStats stats{.bytes_in_use = in_use_,
                       .peak_bytes = peak_,
                       .bytes_cached = cached(),
                       .allocations = allocations_,
                       .bytes_reserved = reserved_};
  for (size_t i = 0; i < kPurposes; ++i) stats.by_purpose[i] = purposes_[i].load(std::memory_order_relaxed);
  return stats;
}

void Allocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = in_use_;
}
void Allocator::set_cache_limit(int64_t bytes) {
  if (bytes < 0) throw Error(absl::StrCat("set_cache_limit: ", bytes, " bytes"));
  const std::lock_guard lock(mutex_);
  cache_limit_ = bytes;
  free_waiting();
}
void Allocator::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}
int64_t Allocator::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}
void Allocator::count_purpose(Purpose purpose, int64_t bytes) noexcept {
  if (purpose != Purpose::kWorkspace)
    purposes_[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
}
void Allocator::trim() {
  const std::lock_guard lock(mutex_);
  release_free_segments(0);
}

}  // namespace rondo::cuda
