// Storage: one reference-counted block of bytes, shared by a tensor and its views, with the version counter that
// in-place writes bump. Memory comes from the device (backend.h); host memory from the caching allocator below. Thread
// safety: reference counts and versions are atomic; the bytes are the user's to synchronise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo {

// Blocks are aligned so that a full vector register or cache line never straddles their start.
inline constexpr size_t kAlignment = 64;

// The use of a block of memory (memory.h).
enum class Purpose : uint8_t { kWorkspace, kParameters, kGradients, kStates, kActivations };
inline constexpr int kPurposes = 5;

struct AllocatorStats {
  int64_t bytes_in_use = 0;            // handed out now
  int64_t peak_bytes = 0;              // highest bytes_in_use since reset_peak()
  int64_t bytes_cached = 0;            // of freed blocks above 64 KB, kept for reuse
  int64_t allocations = 0;             // calls, ever
  int64_t bytes_reserved = 0;          // taken from the system: in use, cached, and what blocks are rounded up by
  int64_t by_purpose[kPurposes] = {};  // of bytes_in_use; that of kWorkspace is not kept: it is the rest
};

// A cache of host memory: what is freed is kept and reused. Blocks up to 64 KB have classes of sizes, and are kept by
// the thread that freed them, at most 26 MB for each thread. Larger blocks take whole pages, which all threads share:
// freed neighbours are joined, and serve blocks of any size. What is kept of them is bounded by the cache limit: the
// pages that were freed first go back to the system first.
namespace allocator {
// Throws OutOfMemoryError when memory is exhausted, or if one block exceeds the memory that this process may use.
void* allocate(size_t bytes);
void deallocate(void* data, size_t bytes) noexcept;
AllocatorStats stats();
void reset_peak();
// The most that bytes_cached may be; 0 keeps no large block. Default: half of the memory that this process may use, by
// the machine and its control group. Whatever the limit, pages are given back while used and cached memory
// together exceed three quarters of that. Throws Error if `bytes` is negative.
void set_cache_limit(int64_t bytes);
int64_t cache_limit();
// Gives cached pages back to the system, the oldest first, until bytes_cached is at most `bytes`.
void trim(int64_t bytes);
// Gives all freed blocks back; other threads give back their small ones when they next allocate. memory::trim() empties
// the other caches, too.
void empty_cache();
// Fills every freed block with 0xFF bytes (NaN in every float type): a use after free becomes a wrong number at once.
void set_poison_on_free(bool on);
}  // namespace allocator

class Storage {
 public:
  Storage() = default;
  static Storage allocate(size_t bytes, Device device = kCPU);
  // Memory owned by someone else (a mapped file): `owner`, not null, is kept alive as long as the storage.
  static Storage borrow(void* data, size_t bytes, std::shared_ptr<const void> owner, Device device = kCPU);

  Storage(const Storage& other) : block_(other.block_) { retain(); }
  Storage(Storage&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Storage& operator=(Storage other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Storage() { release(); }

  explicit operator bool() const { return block_ != nullptr; }
  std::byte* data() const { return block_->data; }  // an address of the device
  size_t bytes() const { return block_->bytes; }
  Device device() const { return block_->device; }
  uint32_t version() const { return block_->version.load(std::memory_order_relaxed); }
  void bump_version() const { block_->version.fetch_add(1, std::memory_order_relaxed); }
  bool is_unique() const { return block_->refs.load(std::memory_order_acquire) == 1; }
  bool is_borrowed() const { return block_->owner != nullptr; }
  friend bool operator==(const Storage& a, const Storage& b) { return a.block_ == b.block_; }
  const void* id() const { return block_; }
  // Freed with the block. Null: there is none.
  struct Attachment {
    virtual ~Attachment() = default;
  };
  std::atomic<Attachment*>& attachment() const { return block_->attachment; }
  Purpose purpose() const { return block_->purpose.load(std::memory_order_relaxed); }
  void set_purpose(Purpose purpose) const {
    if (purpose != this->purpose()) change_purpose(purpose);
  }

 private:
  struct Block {
    std::atomic<int32_t> refs{1};
    std::atomic<uint32_t> version{0};
    std::atomic<Purpose> purpose{Purpose::kWorkspace};
    Device device;
    std::byte* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const void> owner;
    std::atomic<Attachment*> attachment{nullptr};
  };
  void retain() const {
    if (block_) block_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (block_ && (is_unique() || block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1)) destroy(block_);
  }
  void change_purpose(Purpose purpose) const;
  static void destroy(Block* block) noexcept;
  Block* block_ = nullptr;
};

}  // namespace rondo
#pragma GCC visibility pop
