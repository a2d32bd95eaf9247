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

#pragma GCC visibility push(default)
namespace rondo {

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
