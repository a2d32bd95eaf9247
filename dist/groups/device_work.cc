#include "rondo/dist/groups/device_work.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace rondo::dist {

DeviceWork::DeviceWork(Device device, const NamedCall& call, Tensor out, Tensor in)
    : table_(backend_of(device)), device_(device.index), call_(call), out_(std::move(out)), in_(std::move(in)) {}

DeviceWork::~DeviceWork() {
  let_go();
  for (const EventHandle event : {ready_, done_})
    if (event != nullptr) table_.release(device_, event);
}

void DeviceWork::join_communication() {
  ready_ = table_.record(device_, Stream::kCompute);
  table_.wait(device_, Stream::kCommunication, ready_);
}

void DeviceWork::enqueued() { done_ = table_.record(device_, Stream::kCommunication); }

// Drops the tensors. Before their memory can be reused, the compute stream waits for the collective.
void DeviceWork::let_go() noexcept {
  if (!out_.defined() && !in_.defined()) return;
  try {
    if (done_ != nullptr) table_.wait(device_, Stream::kCompute, done_);
  } catch (const std::exception&) {
    // The device has failed, and its memory is lost.
  }
  out_ = Tensor();
  in_ = Tensor();
}

void DeviceWork::wait() {
  std::unique_lock lock(mutex);
  throw_error(lock);
  if (done_ != nullptr) table_.wait(device_, Stream::kCompute, done_);
  out_ = Tensor();
  in_ = Tensor();
}

// Waits by polling. If a rank never calls the collective, the collective's kernel never ends, and any other kind of
// wait would block forever.
void DeviceWork::synchronize() {
  constexpr int kYields = 100;
  constexpr std::chrono::microseconds kLongestPause{200};
  std::chrono::microseconds pause{5};
  for (int i = 0;; ++i) {
    {
      std::unique_lock lock(mutex);
      throw_error(lock);
      if (outcome == Work::Outcome::kDone) return;
      if (is_reached()) {
        outcome = Work::Outcome::kDone;
        return let_go();
      }
      if (i >= kYields) {
        done_changed.wait_for(lock, pause, [this] { return outcome != Work::Outcome::kPending; });
        pause = std::min(2 * pause, kLongestPause);
        continue;
      }
    }
    std::this_thread::yield();
  }
}

bool DeviceWork::is_done() {
  const std::lock_guard lock(mutex);
  if (outcome != Work::Outcome::kPending) return true;
  if (!is_reached()) return false;
  outcome = Work::Outcome::kDone;
  let_go();
  return true;
}

std::optional<std::chrono::steady_clock::time_point> DeviceWork::started() {
  if (!started_ && table_.reached(device_, ready_)) started_ = std::chrono::steady_clock::now();
  return started_;
}

void DeviceWork::lose(Work::Outcome with, const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex);
    if (outcome != Work::Outcome::kPending) return;
    let_go();
    outcome = with;
    error = why;
  }
  done_changed.notify_all();
}

}  // namespace rondo::dist
