#include "rondo/runtime/base/within_memory.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace rondo {
namespace {
// Made while there is still memory. Throwing a copy allocates no text, because copies share it.
const OutOfMemoryError& kOutOfMemory = *new OutOfMemoryError("out of memory");
}  // namespace

void throw_out_of_memory(std::string_view what) {
  std::optional<OutOfMemoryError> error;
  try {
    error.emplace(absl::StrCat(std::string(what), ": not enough memory"));
  } catch (const std::bad_alloc&) {
    throw kOutOfMemory;  // NOLINT: what is thrown is a copy
  }
  throw *error;
}
}  // namespace rondo
