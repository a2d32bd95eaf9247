#include "rondo/runtime/cuda/bad_index.h"

#include "rondo/runtime/cuda/device_state.h"

namespace rondo::cuda {

IndexCheck check_indices(const KernelContext& context, int64_t size, bool at_position) {
  return check_indices_of(context.op.name, context, size, at_position);
}

IndexCheck check_indices_of(const char* op, const KernelContext& context, int64_t size, bool at_position) {
  return check_indices_at(context.out().device().index, op, context.where, size, at_position);
}

IndexCheck check_indices_at(int device, const char* op, std::source_location where, int64_t size, bool at_position) {
  DeviceState& state = device_state(device);
  return {state.status(), state.calls().note(op, CallSite(where), size, at_position)};
}

}  // namespace rondo::cuda
