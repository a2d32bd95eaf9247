// The rows of a table in a device's memory: for devices that run host code asynchronously and cannot read host memory.
#pragma once

#include "rondo/compile/target/table.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::compile::cpu {

// One block of memory, written and freed in stream order. Work that is enqueued while this object exists may read the
// memory.
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
