// Storage: one reference-counted block of bytes, shared by a tensor and its views, with a version counter that in-place
// writes increase. Memory comes from the device (backend.h); host memory from allocator.h. Thread safety: reference
// counts and versions are atomic; the user must synchronise access to the bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rondo/runtime/device/allocator_stats.h"
#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo {

class Storage {
 public:
  Storage() = default;
  static Storage allocate(size_t bytes, Device device = kCPU);
  // Uses memory that `owner` owns (a mapped file). The storage keeps `owner`, which may not be null, alive.
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
  // An object that is deleted with the block. Null if there is none.
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
