// The op that this thread runs, and its callers. Memory reports and out-of-memory messages of a device show them.
//
//   const memory::Cause cause("backward of ", "linear", where);
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "rondo/runtime/base/source_location.h"

#pragma GCC visibility push(default)
namespace rondo::memory {

namespace detail {
extern std::atomic<int> asks_for_causes;  // how many memory recordings and open devices may call Cause::describe()
}  // namespace detail

// Names the work of this thread in this scope, for Report::cause and for out-of-memory messages of a device. Does
// nothing while no memory recording runs and no CUDA device is open. `prefix` and `name` must outlive the object.
class Cause {
 public:
  Cause(const char* prefix, std::string_view name, std::source_location where) {
    if (detail::asks_for_causes.load(std::memory_order_relaxed) != 0) [[unlikely]]
      enter(prefix, name, where);
  }
  ~Cause() {
    if (entered_) [[unlikely]]
      innermost_ = outer_;
  }
  Cause(const Cause&) = delete;
  Cause& operator=(const Cause&) = delete;
  // Returns text such as "matmul, in backward of linear (train.cc:41)".
  static std::string describe();

  // Returns this thread's innermost Cause, or null. A pool thread that helps another thread adopts its Cause with
  // TakenOver.
  static const Cause* innermost() { return innermost_; }
  class TakenOver {
   public:
    explicit TakenOver(const Cause* cause) : own_(std::exchange(innermost_, cause)) {}
    ~TakenOver() { innermost_ = own_; }
    TakenOver(const TakenOver&) = delete;
    TakenOver& operator=(const TakenOver&) = delete;

   private:
    const Cause* const own_;
  };

 private:
  void enter(const char* prefix, std::string_view name, std::source_location where) {
    prefix_ = prefix;
    name_ = name;
    where_ = where;
    outer_ = innermost_;
    innermost_ = this;
    entered_ = true;
  }
  const char* prefix_ = "";
  std::string_view name_;
  std::source_location where_;
  const Cause* outer_ = nullptr;
  bool entered_ = false;
  static inline thread_local const Cause* innermost_ = nullptr;
};

}  // namespace rondo::memory
#pragma GCC visibility pop
