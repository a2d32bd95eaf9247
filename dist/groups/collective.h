// ReduceOp: how a collective reduces. Work: the handle of a collective that has been issued.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace rondo::dist {

enum class ReduceOp : uint8_t { kSum, kAverage };

// A collective that has been issued. Copies refer to the same collective. Destroying a Work does not stop it.
class Work {
 public:
  enum class Outcome : uint8_t { kPending, kDone, kLate, kLost, kMismatch };
  struct State;
  Work() = default;  // refers to no collective: is_done() is true
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // After wait(), this thread may use the tensors. Host tensors: blocks until the collective is done. Tensors of a
  // device: the device's compute stream waits for an event, and this thread does not block. Throws TimeoutError,
  // ConnectionError or MismatchError if the error is already known: Note [Where an error surfaces] in process_group.h.
  void wait() const;
  // Blocks this thread until the collective is done. Throws the collective's error.
  void synchronize() const;
  bool is_done() const;  // true also if the collective has failed

 private:
  std::shared_ptr<State> state_;
};

// The state of a collective of host tensors. A collective of device tensors has its own state (device_work.h).
// Thread safe: the communication thread calls finish(), other threads wait.
struct Work::State {
  virtual ~State() = default;
  virtual void wait() { synchronize(); }
  virtual void synchronize();
  virtual bool is_done();
  void finish(Outcome with, std::string error);
  // Throws the collective's error, if it has one. REQUIRES: `lock` holds `mutex`.
  void throw_error(std::unique_lock<std::mutex>& lock) const;

  std::mutex mutex;
  std::condition_variable done_changed;
  Outcome outcome = Outcome::kPending;
  std::string error;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
