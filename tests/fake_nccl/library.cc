#include "rondo/tests/fake_nccl/library.h"

#include <chrono>
#include <thread>
#include <utility>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::test {

const Nccl& nccl() {
  static const Nccl table = {
#define RONDO_NCCL_MEMBER(member, symbol, ...) library_function<std::add_pointer_t<__VA_ARGS__>>(#symbol),
      RONDO_NCCL_FUNCTIONS(RONDO_NCCL_MEMBER)
#undef RONDO_NCCL_MEMBER
  };
  return table;
}

void check(Status status) {
  if (status != Status::kSuccess && status != Status::kInProgress)
    throw Error(std::string("NCCL: ") + nccl().error_string(status));
}

void call(Device device, Stream stream, const std::function<Status(cuda::StreamPtr)>& function) {
  backend_of(device).call_library(device.index, stream, "NCCL",
                                  [&](void* handle) { check(function(static_cast<cuda::StreamPtr>(handle))); });
}

Status settled(NcclComm communicator) {
  Status state = Status::kInProgress;
  for (;;) {
    check(nccl().async_error(communicator, &state));
    if (state != Status::kInProgress) return state;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

OneProcess::OneProcess(const std::vector<Device>& devices) : devices_(devices), communicators_(devices.size()) {
  UniqueId id;
  check(nccl().get_unique_id(&id));
  check(nccl().group_start());
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const cuda::ContextScope scope(cuda::device_state(devices[rank].index));
    check(nccl().init_rank(&communicators_[rank], static_cast<int>(devices.size()), id, static_cast<int>(rank)));
  }
  check(nccl().group_end());
}
OneProcess::~OneProcess() {
  for (const NcclComm communicator : communicators_)
    if (communicator != nullptr) nccl().destroy(communicator);
}
void OneProcess::abort(size_t rank) { check(nccl().abort(std::exchange(communicators_[rank], nullptr))); }

void join(Device device, Stream before, Stream after) {
  const BackendTable& table = backend_of(device);
  const EventHandle event = table.record(device.index, before);
  table.wait(device.index, after, event);
  table.release(device.index, event);
}

}  // namespace rondo::test
