// The rows of a table in a device's memory, for host code that runs late on devices that do not read host memory.
#pragma once

#include "rondo/compile/target/table.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::compile::cpu {

// One block, written and freed in stream order: work that is enqueued while this lives may read it.
class RowsOnDevice {
 public:
  // `rows` is host memory.
  RowsOnDevice(const TableRows& rows, size_t n_operands, Device device);
  const TableRows& rows() const { return rows_; }

 private:
  Storage memory_;
  TableRows rows_;
};

}  // namespace rondo::compile::cpu
