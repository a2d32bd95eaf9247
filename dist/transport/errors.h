// Errors between processes. Every message names the rank or the address concerned.
#pragma once

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

// The base class.
class DistError : public Error {
 public:
  using Error::Error;
};

// A peer or the store did not answer in time.
class TimeoutError : public DistError {
 public:
  using DistError::DistError;
};

// A peer or the store has ended, cannot be reached, or does not speak this protocol.
class ConnectionError : public DistError {
 public:
  using DistError::DistError;
};

// The ranks differ: they call different collectives, have different plans, or one lacks a gradient.
class MismatchError : public DistError {
 public:
  using DistError::DistError;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
