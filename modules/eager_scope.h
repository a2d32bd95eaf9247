// Runs compiled modules op by op on this thread.
#pragma once

#pragma GCC visibility push(default)
namespace rondo::nn {

// While one lives, compiled modules that this thread calls run their forward eagerly: they record nothing, compile
// nothing, and keep no entry. Other call hooks (adapters) run as always. Scopes nest; other threads are not affected.
class EagerScope {
 public:
  EagerScope() { ++depth_; }
  ~EagerScope() { --depth_; }
  EagerScope(const EagerScope&) = delete;
  EagerScope& operator=(const EagerScope&) = delete;
  // True inside a scope of this thread. A hook that compiles asks this before each call.
  static bool active() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
