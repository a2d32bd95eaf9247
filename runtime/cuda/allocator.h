// The caching allocator of one device (backend.h, Note [Stream order]). It takes segments from the driver, cuts blocks
// from them, and joins neighbours again when they are freed. A freed block serves the next request at once, because the
// work of its last owner was enqueued before the work of its next owner. Freed small blocks first wait, without being
// joined, for a request of their size. They are joined when no other memory is left. Only giving a segment back to the
// driver waits for the device.
//
// RONDO_CUDA_CACHE=0: every block is a separate allocation by the driver (cuMemAllocAsync on the compute stream). This
// is slower, but compute-sanitizer then sees the lifetime and the bounds of every block.
//
// Thread safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::cuda {

class DeviceContext;

class Allocator {
 public:
  explicit Allocator(DeviceContext& device);
  ~Allocator();  // frees all memory, whether in use or not. REQUIRES: the context is current and idle
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // The memory that a block of `bytes` takes: rounded up in steps of an eighth of a power of two, at least kStep.
  static size_t block_bytes(size_t bytes);
  void* allocate(size_t bytes);  // throws OutOfMemoryError
  void deallocate(void* data, size_t bytes) noexcept;
  AllocatorStats stats() const;
  void reset_peak();
  void set_cache_limit(int64_t bytes);  // takes effect with the next allocate()
  void set_limit(int64_t bytes);
  int64_t limit() const;
  void count_purpose(Purpose purpose, int64_t bytes) noexcept;
  void trim();
  // Returns the error for a request that found no memory. The message says what asked for memory, how much is in use
  // and for which purposes, and what to do. `request`: "allocate 80 bytes".
  OutOfMemoryError out_of_memory(const std::string& request) const;

  static constexpr size_t kStep = 256;  // also the alignment of every block

 private:
  struct Segment;
  struct Block;
  using FreeBlocks = std::set<std::pair<std::pair<size_t, DevicePtr>, Block*>>;  // by size, then by address
  struct Block {
    Segment* segment;
    DevicePtr address;
    size_t bytes;
    bool free;
    Block *before, *after;         // neighbours in the segment; null at its ends
    FreeBlocks::node_type node{};  // while in use: its node for the free list, so that freeing it allocates nothing
  };
  struct Segment {
    DevicePtr address;
    size_t bytes;
    bool small;  // for blocks up to kSmall
    Block* first;
    std::list<Segment>::iterator self;
  };

  static size_t class_of(size_t size);                  // returns the size class of `size`, which is at most kSmall
  static FreeBlocks::node_type place_of(Block* block);  // makes the node of `block` for a set of free blocks
  void free_block(Block* block);
  void free_waiting();            // frees the blocks of waiting_
  void* take(size_t size);        // takes a block from the cache; null: none fits
  bool add_segment(size_t size);  // takes memory from the driver; false: there is none, or the limit is reached
  bool add_segment_of(size_t bytes, bool small);
  void* take_uncached(size_t size);          // null: no memory, or the limit is reached
  void release_free_segments(int64_t most);  // waits for the device, and gives segments back until cached() <= most
  OutOfMemoryError describe_exhausted(const std::string& request) const;  // REQUIRES: mutex_ is held
  int64_t cached() const { return reserved_ - in_use_; }

  DeviceContext& device_;
  const bool caching_;
  mutable std::mutex mutex_;  // guards all members below except purposes_
  std::list<Segment> segments_;
  HashMap<DevicePtr, Block*> used_;
  FreeBlocks free_[2];  // of large segments [0], and of small ones [1]
  // Freed blocks that were not joined yet, by the class of their size. They are still in used_.
  static constexpr size_t kClasses = 80;
  struct Waiting {
    static constexpr size_t kMost = 64;
    size_t n = 0;
    Block* blocks[kMost];
  } waiting_[kClasses];
  int64_t in_use_ = 0, peak_ = 0, reserved_ = 0, allocations_ = 0, limit_ = 0;
  int64_t cache_limit_;
  int64_t releasable_ = 0;  // bytes of segments without a block in use
  std::array<std::atomic<int64_t>, kPurposes> purposes_{};
};

}  // namespace rondo::cuda
