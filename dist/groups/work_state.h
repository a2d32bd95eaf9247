// The state of a collective that was issued: Work (process_group.h) refers to it. This one is that of host tensors; a
// group of device tensors has its own (device_work.h).
//
// Thread safe: the communication thread finishes it, other threads wait.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "rondo/dist/groups/process_group.h"

namespace rondo::dist {

struct Work::State {
  virtual ~State() = default;
  virtual void wait() { synchronize(); }
  virtual void synchronize();
  virtual bool is_done();
  void finish(Outcome with, std::string error);
  // Throws the error that is known. REQUIRES: `lock` holds `mutex`.
  void throw_error(std::unique_lock<std::mutex>& lock) const;

  std::mutex mutex;
  std::condition_variable done_changed;
  Outcome outcome = Outcome::kPending;
  std::string error;
};

}  // namespace rondo::dist
