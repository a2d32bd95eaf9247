// A collective of device tensors in flight: Note [Device collectives] in nccl_communicator.h.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <chrono>
#include <optional>

#include "rondo/dist/groups/collective.h"
#include "rondo/dist/groups/sequence.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::dist {

class DeviceWork final : public Work::State {
 public:
  DeviceWork(Device device, const NamedCall& call, Tensor out, Tensor in);
  ~DeviceWork() override;

  // Call before and after the collective is enqueued.
  void join_communication();
  void enqueued();

  void wait() override;
  void synchronize() override;
  bool is_done() override;

  const NamedCall& call() const { return call_; }
  // Returns when the device was first seen to have finished the work before the collective, or nullopt if that has not
  // happened yet. Only one thread may call it.
  std::optional<std::chrono::steady_clock::time_point> started();
  // Marks the collective as lost: it has this error from now on. Call this before the abort: an abort lets the device
  // reach the collective's event, although the collective is not done.
  void lose(Work::Outcome outcome, const std::string& why) noexcept;

 private:
  bool is_reached() { return done_ != nullptr && table_.reached(device_, done_); }
  void let_go() noexcept;  // drops the tensors. REQUIRES: mutex is held

  const BackendTable& table_;
  const int device_;
  const NamedCall call_;
  Tensor out_, in_;
  EventHandle ready_ = nullptr, done_ = nullptr;
  std::optional<std::chrono::steady_clock::time_point> started_;
};

}  // namespace rondo::dist
