// The edge of a public function: memory that runs short leaves it as OutOfMemoryError, with the function's name.
//
//   Tensor read_image(const std::string& path) {
//     return within_memory("read_image", [&] { ... });
//   }
//
// Between here and there std::bad_alloc travels as it is.
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
// the program itself fails, such as one for the arguments of a call, it throws std::bad_alloc as ever.
//
// The objects of the call are as before, so the call may be made again. But if backward() throws it, some gradients are
// accumulated already: call zero_grad() before you go on. If merge_adapter() throws it, unmerge_adapter() undoes the
// part that is merged. If LLVM finds no memory while it compiles, this process does not enter LLVM again: kernels that
// are not compiled yet run eagerly, with a warning. A lack of memory ends the process only while LLVM is loaded, with
// the first kernel.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// Throws OutOfMemoryError "what: not enough memory", or "out of memory" if not even that text can be made.
[[noreturn, gnu::cold]] void throw_out_of_memory(std::string_view what);

// run(). std::length_error is a size from a file or a caller that no memory has.
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
