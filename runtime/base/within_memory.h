// Wraps the body of a public function: if memory runs out, callers get an OutOfMemoryError with the function's name.
//
//   Tensor read_image(const std::string& path) {
//     return within_memory("read_image", [&] { ... });
//   }
//
// Code inside the body lets std::bad_alloc pass.
#pragma once

#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo {

// Thrown when memory is exhausted: the system's, or that of memory::set_limit(). Public functions also throw it if only
// a few bytes of bookkeeping are missing; functions that read files may throw FileError instead. If an allocation of
// the program itself fails, such as one for the arguments of a call, the program gets std::bad_alloc as usual.
//
// The objects of the call are unchanged, so the call may be repeated. But after backward() some gradients may already
// be accumulated: call zero_grad() before you go on. After merge_adapter(), unmerge_adapter() undoes the part that is
// merged. If LLVM runs out of memory while it compiles, this process does not call LLVM again: kernels that are not
// compiled yet run eagerly, with a warning. A lack of memory ends the process in one case only: while LLVM is being
// loaded, when the first kernel is compiled.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// Throws OutOfMemoryError "what: not enough memory", or "out of memory" if not even that text can be made.
[[noreturn, gnu::cold]] void throw_out_of_memory(std::string_view what);

// Returns run(). A std::length_error counts as out of memory: a file or a caller gave a size that no memory can hold.
template <class F> decltype(auto) within_memory(std::string_view what, F&& run) {
  try {
    return std::forward<F>(run)();
  } catch (const std::bad_alloc&) {
    throw_out_of_memory(what);
  } catch (const std::length_error&) {
    throw_out_of_memory(what);
  }
}

}  // namespace rondo
#pragma GCC visibility pop
