#include "rondo/modules/eager_scope.h"

#include "rondo/runtime/op/recorder.h"

namespace rondo::nn {

EagerScope::EagerScope(const char* what, std::source_location where)
    : pause_(active_recorder() == nullptr ? nullptr : std::make_unique<const RecordingPause>(what, where)) {
  ++depth_;
}
EagerScope::~EagerScope() { --depth_; }

}  // namespace rondo::nn
