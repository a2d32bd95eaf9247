#include "rondo/compile/exec/rows_on_device.h"

#include <cstring>
#include <vector>

#include "rondo/runtime/backend.h"

namespace rondo::compile {

RowsOnDevice::RowsOnDevice(const Table& table, Device device) : rows_(table.rows()) {
  const size_t items = table.items.size() * sizeof(TableItem), operands = table.operands.size() * sizeof(void*),
               ends = table.ends.size() * sizeof(int64_t);
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

}  // namespace rondo::compile
