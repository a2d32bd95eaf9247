#include "rondo/compile/exec/table_launch.h"

#include <cstring>

#include "rondo/runtime/backend.h"
#include "rondo/runtime/storage.h"

namespace rondo::compile {
namespace {

// The rows of a table in the memory of a device, which is freed in stream order.
class RowsOnDevice {
 public:
  RowsOnDevice(const Table& table, Device device) {
    const TableRows here = table.rows();
    const size_t items = table.items.size() * sizeof(TableItem), operands = table.operands.size() * sizeof(void*),
                 ends = table.ends.size() * sizeof(int64_t);
    std::vector<std::byte> packed(items + operands + ends);
    std::memcpy(packed.data(), here.items, items);
    std::memcpy(packed.data() + items, here.operands, operands);
    std::memcpy(packed.data() + items + operands, here.ends, ends);
    memory_ = Storage::allocate(packed.size(), device);
    std::byte* const there = memory_.data();
    copy_bytes(device, there, kCPU, packed.data(), packed.size());
    rows_ = here;
    rows_.items = reinterpret_cast<const TableItem*>(there);
    rows_.operands = reinterpret_cast<void* const*>(there + items);
    rows_.ends = reinterpret_cast<const int64_t*>(there + items + operands);
  }
  const TableRows& rows() const { return rows_; }

 private:
  Storage memory_;
  TableRows rows_;
};

}  // namespace

TableLaunch::TableLaunch(LoopKernel kernel) : kernel_(std::move(kernel)), extents_(extents(kernel_)) {}

int TableLaunch::compile(Device device) {
  if (compiled()) return 0;
  // Launches pass the sizes of each item, down to a single element.
  KernelUse use = exact_use(kernel_);
  use[0] = {};
  for (size_t at : width_extents(kernel_)) use[at] = {};
  const Target& target = target_of(device);
  const CompiledKernels made = find_or_compile({&kernel_, 1}, kernel_.split_columns ? Sizes::kConstant : Sizes::kAny,
                                               {}, {&use, 1}, target);
  code_ = made.kernels[0];
  device_ = device;
  target_ = &target;
  return made.compiled;
}

void TableLaunch::run(const Table& table, const Condition& when) const {
  if (table.items.empty()) return;
  const auto launch = [&](const TableRows& rows, const LaunchFunctions::Owner& owner) {
    target_->launch.table(device_, {code_.handle, &kernel_, extents_, rows, when}, owner);
  };
  if (runs_at_once(device_)) [[likely]]
    return launch(table.rows(), nullptr);
  launch(RowsOnDevice(table, device_).rows(), shared_from_this());
}

}  // namespace rondo::compile
