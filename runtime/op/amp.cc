#include "rondo/runtime/op/amp.h"

#include <utility>

#include "rondo/runtime/base/error.h"

namespace rondo::amp {

namespace {
thread_local std::optional<DType> autocast;
}

std::optional<DType> autocast_dtype() { return autocast; }

Autocast::Autocast(std::optional<DType> dtype) : previous_(std::exchange(autocast, dtype)) {
  if (dtype && !is_low_precision(*dtype)) {
    autocast = previous_;
    throw Error("amp::Autocast takes bf16 or f16");
  }
}
Autocast::~Autocast() { autocast = previous_; }

}  // namespace rondo::amp
