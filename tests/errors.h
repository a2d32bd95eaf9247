// The exception of a call, for tests of messages.
#pragma once

#include <string>
#include <utility>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/device.h"

namespace rondo::test {

// The message of the E that `fn` throws, or that its work on the default device finds later; "" if there is none.
// Others pass.
template <class E = Error, class F> std::string error_of(F&& fn) {
  try {
    std::forward<F>(fn)();
    synchronize(default_device());
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

}  // namespace rondo::test
