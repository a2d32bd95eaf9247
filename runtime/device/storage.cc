#include "rondo/runtime/device/storage.h"

#include "rondo/runtime/base/cpu_features.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/peak_memory.h"

namespace rondo {

Storage Storage::allocate(size_t bytes, Device device) try {
  check_cpu();  // this check is enough, because no kernel runs without a tensor
  const BackendTable& table = backend_of(device);
  if (device.index != 0) [[unlikely]]
    require_device(device);
  Storage storage;
  storage.block_ = new Block;
  storage.block_->device = device;
  storage.block_->bytes = bytes;
  storage.block_->data = static_cast<std::byte*>(table.allocate(device.index, bytes));  // may throw: then data is null
  return storage;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("a tensor's memory");
}

Storage Storage::borrow(void* data, size_t bytes, std::shared_ptr<const void> owner, Device device) try {
  check_cpu();
  Storage storage;
  storage.block_ = new Block;
  storage.block_->device = device;
  storage.block_->data = static_cast<std::byte*>(data);
  storage.block_->bytes = bytes;
  storage.block_->owner = std::move(owner);
  return storage;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("a tensor's memory");
}

void Storage::change_purpose(Purpose purpose) const {
  if (block_->owner != nullptr) return;
  // exchange() returns the old purpose exactly once, so the counts stay right if threads race.
  const Purpose before = block_->purpose.exchange(purpose, std::memory_order_relaxed);
  const BackendTable& table = backend_of(block_->device);
  if (!table.host_memory) {
    const auto size = static_cast<int64_t>(table.block_bytes(block_->bytes));
    table.count_purpose(block_->device.index, before, -size);
    table.count_purpose(block_->device.index, purpose, size);
    return;
  }
  const size_t size = allocator::block_bytes(block_->bytes);
  allocator::count_purpose(before, -static_cast<int64_t>(size));
  allocator::count_purpose(purpose, static_cast<int64_t>(size));
  if (memory::recording())
    memory::note_purpose(block_->data, size, before, purpose, allocator::bytes_for(Purpose::kActivations));
}

void Storage::destroy(Block* block) noexcept {
  delete block->attachment.load(std::memory_order_acquire);
  if (block->owner == nullptr && block->data != nullptr) {
    const BackendTable* table = detail::backends[static_cast<size_t>(block->device.backend)].load(
        std::memory_order_acquire);
    if (table != nullptr && table->host_memory) [[likely]] {
      const Purpose purpose = block->purpose.load(std::memory_order_relaxed);
      if (purpose != Purpose::kWorkspace)
        allocator::count_purpose(purpose, -static_cast<int64_t>(allocator::block_bytes(block->bytes)));
      if (memory::recording()) [[unlikely]]
        memory::note_free(block->data);
    } else if (table != nullptr) {
      const Purpose purpose = block->purpose.load(std::memory_order_relaxed);
      if (purpose != Purpose::kWorkspace)
        table->count_purpose(block->device.index, purpose, -static_cast<int64_t>(table->block_bytes(block->bytes)));
    }
    if (table != nullptr) table->deallocate(block->device.index, block->data, block->bytes);
  }
  delete block;
}

}  // namespace rondo
