// The objects behind the handles of the C API.
//
// A rondo_model* is a number that was never used before in this process, not an address. So the use of a handle that
// was destroyed or never made is an Error, not a crash.
// Thread safety: everything here may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "rondo/optim/c_api/session.h"
#include "rondo/rondo_c.h"

namespace rondo::optim::c_api {

// Thrown when a callback makes a call with the handle whose call is running the callback.
class BusyError : public Error {
 public:
  using Error::Error;
};

// One session, and the queue of calls that wait for it.
class Handle {
 public:
  explicit Handle(std::unique_ptr<Session> session) : session_(std::move(session)) {}

  // Gives one call exclusive use of the session. The constructor waits for the calls that came before. It throws
  // BusyError if this thread is inside such a call (in a callback), and Error if the handle was destroyed meanwhile.
  class [[nodiscard]] Turn {
   public:
    explicit Turn(std::shared_ptr<Handle> handle);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Session* operator->() const { return handle_->session_.get(); }
    // Frees the session. Later turns throw.
    void end_session() { handle_->session_.reset(); }

   private:
    const std::shared_ptr<Handle> handle_;
  };

 private:
  void enter();
  void leave();
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ticket_ = 0, serving_ = 0;  // calls are served in the order of their tickets
  std::thread::id inside_;                  // the thread of the call that is served
  std::unique_ptr<Session> session_;        // only the call that is served touches it
};

rondo_model* add_handle(std::unique_ptr<Session> session);
// Throws Error if `model` is no handle, or was destroyed.
std::shared_ptr<Handle> find_handle(const rondo_model* model);
// Forgets the handle: find_handle() throws for `model` from now on.
void remove_handle(const rondo_model* model);

}  // namespace rondo::optim::c_api
