// LibraryError: a library that kernels call, such as oneDNN, failed or cannot be loaded.
#pragma once

#include <string_view>
#include <utility>

#include "rondo/runtime/base/error.h"

namespace rondo {

// A kernel throws this error with the library's message. The caller of the kernel adds the op and the user's line.
class LibraryError : public Error {
 public:
  using Error::Error;
};

// Returns run(). A LibraryError is rethrown as Error "op: what (file:line, in module.path)".
template <class F> decltype(auto) naming_op(std::string_view op, std::source_location where, F&& run) {
  try {
    return std::forward<F>(run)();
  } catch (const LibraryError& error) {
    throw_op_error(op, error.what(), where);
  }
}

}  // namespace rondo
