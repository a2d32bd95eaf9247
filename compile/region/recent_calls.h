// The latest calls of one compiled module, for the next ones to follow or to replay. Thread safe.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "rondo/compile/region/replay.h"

namespace rondo::compile {

class RecentCalls {
 public:
  // Returns the binding that the latest call ran as its only recording; null if there is none.
  std::shared_ptr<const Binding> latest() const {
    std::lock_guard lock(mutex_);
    return latest_;
  }
  void set_latest(std::shared_ptr<const Binding> latest) {
    std::lock_guard lock(mutex_);
    latest_.swap(latest);
  }
  // Returns the newest replay that matches the call; null: there is none.
  std::shared_ptr<const Replay> find(const nn::ModuleCall& call) const {
    std::lock_guard lock(mutex_);
    for (size_t i = replays_.size(); i-- > 0;)
      if (replays_[i]->matches(call)) return replays_[i];
    return nullptr;
  }
  void add(std::shared_ptr<const Replay> replay) {
    std::lock_guard lock(mutex_);
    if (replay->binding().entry()->use().forgotten) return;
    if (replays_.size() >= kMaxReplays) replays_.erase(replays_.begin());
    replays_.push_back(std::move(replay));
  }
  void forget() {
    std::shared_ptr<const Binding> latest;  // these two are freed when the lock is not held
    std::vector<std::shared_ptr<const Replay>> replays;
    std::lock_guard lock(mutex_);
    latest.swap(latest_);
    replays.swap(replays_);
  }

 private:
  static constexpr size_t kMaxReplays = 16;  // for calls with different sizes or modes
  mutable std::mutex mutex_;                 // guards the members below
  std::shared_ptr<const Binding> latest_;
  std::vector<std::shared_ptr<const Replay>> replays_;
};

}  // namespace rondo::compile
