// The place of a call in the user's program.
#pragma once

#include <string>
#include <utility>

#include "rondo/runtime/base/source_location.h"

namespace rondo {

// Returns `where` if it is in a file of the user. If `where` is in one of Rondo's own files, returns the place of the
// innermost module call (ModuleFrame) in a file of the user. Takes a few nanoseconds, so it may run for every recorded
// op.
std::source_location user_location(std::source_location where);

// A copy of a call's place, so that work that runs later, perhaps on another thread, can still name it.
class CallSite {
 public:
  // Copies the place of the call that this thread makes now, at `where`.
  explicit CallSite(std::source_location where);
  // Returns the place as messages show it: " (train.cc:41, in h.3.mlp)".
  std::string text() const;

 private:
  std::source_location where_;  // outside of Rondo
  std::string module_;          // the module's path; empty outside of modules
  bool known_;
};

// While in scope, every error of this thread names `site`.
class CallSiteScope {
 public:
  explicit CallSiteScope(const CallSite& site) : outer_(std::exchange(current_, &site)) {}
  ~CallSiteScope() { current_ = outer_; }
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;
  static const CallSite* current() { return current_; }

 private:
  const CallSite* outer_;
  static inline thread_local const CallSite* current_ = nullptr;
};

}  // namespace rondo
