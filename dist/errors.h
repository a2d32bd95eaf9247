// What can go wrong between processes. Every message is a sentence that names the rank, or the address, that it is
// about.
#pragma once

#include "rondo/runtime/error.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

// The base of them all; by itself: this build cannot do it.
class DistError : public Error {
 public:
  using Error::Error;
};

// Nothing was heard in time.
class TimeoutError : public DistError {
 public:
  using DistError::DistError;
};

// A peer or the store is gone, cannot be reached, or does not speak our protocol.
class ConnectionError : public DistError {
 public:
  using DistError::DistError;
};

// The ranks do not do the same thing: another collective, another plan, a gradient that one of them lacks.
class MismatchError : public DistError {
 public:
  using DistError::DistError;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
