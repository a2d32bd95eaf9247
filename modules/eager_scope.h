// EagerScope: while one lives, code runs eagerly, inside and outside of compiled regions.
//
//   Tensor forward(const Tensor& x) {                  // of a compiled block
//     const Tensor h = attention(x);
//     const nn::EagerScope eager;                      // the attention runs now; what follows runs op by op
//     return x + my_experiment(h);
//   }
#pragma once

#include <memory>

#include "rondo/runtime/base/source_location.h"

#pragma GCC visibility push(default)
namespace rondo {
class RecordingPause;
}

namespace rondo::nn {

// While an EagerScope lives, this thread runs op by op. Inside a region, the ops that the region has recorded so far
// run first: this is a graph break, which reports name by `what` and the caller's line. After the scope the region
// records again. Gradients flow through the segment as through any other ops. Compiled modules that are called
// meanwhile run their forward eagerly: they record, compile and cache nothing. Other call hooks (adapters) run as
// always.
// Scopes nest and live on the stack; other threads are not affected. Throws Error inside a region that allows no breaks
// (CompileOptions::fullgraph).
class EagerScope {
 public:
  explicit EagerScope(const char* what = "an EagerScope begins",
                      std::source_location where = std::source_location::current());
  ~EagerScope();
  EagerScope(const EagerScope&) = delete;
  EagerScope& operator=(const EagerScope&) = delete;
  // True inside a scope of this thread. A hook that compiles asks this before each call.
  static bool active() { return depth_ > 0; }

 private:
  const std::unique_ptr<const RecordingPause> pause_;  // null: nothing is being recorded
  static inline thread_local int depth_ = 0;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
