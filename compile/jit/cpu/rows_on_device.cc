#include "rondo/compile/jit/cpu/rows_on_device.h"

#include <cstring>
#include <vector>

#include "rondo/runtime/device/backend.h"

namespace rondo::compile::cpu {

RowsOnDevice::RowsOnDevice(const TableRows& rows, size_t n_operands, Device device) : rows_(rows) {
  const auto n_items = static_cast<size_t>(rows.n_items);
  const size_t items = n_items * sizeof(TableItem), operands = n_items * n_operands * sizeof(void*),
               ends = n_items * sizeof(int64_t);
  std::vector<std::byte> packed(items + operands + ends);
  std::memcpy(packed.data(), rows_.items, items);
  std::memcpy(packed.data() + items, rows_.operands, operands);
  std::memcpy(packed.data() + items + operands, rows_.ends, ends);
  memory_ = Storage::allocate(packed.size(), device);
  std::byte* const there = memory_.data();
  copy_bytes(device, there, kCPU, packed.data(), packed.size());
  rows_.items = reinterpret_cast<const TableItem*>(there);
  rows_.operands = reinterpret_cast<void* const*>(there + items);
  rows_.ends = reinterpret_cast<const int64_t*>(there + items + operands);
}

}  // namespace rondo::compile::cpu
