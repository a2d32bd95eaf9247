// Indices out of range, on the device: a kernel reports the index (status.h) and skips the access. The next call that
// waits for the device then throws the error that the CPU's kernel throws at once.
#pragma once

#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/op/op.h"

namespace rondo::cuda {

// The arguments that a kernel passes on to rondo_report() (status.h): the device status, and the number of the call.
struct IndexCheck {
  DevicePtr status;
  uint32_t call;
};

// Makes the argument for one call, whose indices must lie in [0, size). `at_position`: the message names the position.
IndexCheck check_indices(const KernelContext& context, int64_t size, bool at_position = false);
// Like check_indices(), but the error names `op` instead of the context's op. `op` must be a string constant.
IndexCheck check_indices_of(const char* op, const KernelContext& context, int64_t size, bool at_position);

IndexCheck check_indices_at(int device, const char* op, std::source_location where, int64_t size, bool at_position);

}  // namespace rondo::cuda
