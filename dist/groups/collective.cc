#include "rondo/dist/groups/collective.h"

#include "rondo/dist/transport/errors.h"

namespace rondo::dist {

void Work::State::finish(Outcome with, std::string why) {
  {
    const std::lock_guard lock(mutex);
    outcome = with;
    error = std::move(why);
  }
  done_changed.notify_all();
}

// Every call throws a new exception object: the threads that catch it must not share one.
void Work::State::throw_error(std::unique_lock<std::mutex>&) const {
  switch (outcome) {
    case Outcome::kLate: throw TimeoutError(error);
    case Outcome::kLost: throw ConnectionError(error);
    case Outcome::kMismatch: throw MismatchError(error);
    default: return;
  }
}

void Work::State::synchronize() {
  std::unique_lock lock(mutex);
  done_changed.wait(lock, [this] { return outcome != Outcome::kPending; });
  throw_error(lock);
}

bool Work::State::is_done() {
  const std::lock_guard lock(mutex);
  return outcome != Outcome::kPending;
}

void Work::wait() const {
  if (state_) state_->wait();
}
void Work::synchronize() const {
  if (state_) state_->synchronize();
}
bool Work::is_done() const { return !state_ || state_->is_done(); }

}  // namespace rondo::dist
