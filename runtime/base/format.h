// Like absl's StrFormat() and StrAppendFormat(), but these throw std::bad_alloc when memory runs out. absl's versions
// write the last bytes in a destructor, so a string that cannot grow in this destructor ends the process.
//
//   return formatted("%.1f MB", bytes * 1e-6);      // the format is checked at compile time
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rondo {

template <class... Args>
void append_formatted(std::string* out, const absl::FormatSpec<Args...>& format, const Args&... args) {
  char text[256];
  const auto length = static_cast<size_t>(absl::SNPrintF(text, sizeof text, format, args...));
  const size_t before = out->size();
  out->resize(before + length);
  if (length < sizeof text) std::memcpy(out->data() + before, text, length);
  else absl::SNPrintF(out->data() + before, length + 1, format, args...);
}
template <class... Args> std::string formatted(const absl::FormatSpec<Args...>& format, const Args&... args) {
  std::string out;
  append_formatted(&out, format, args...);
  return out;
}
// Returns a number with its noun: "1 layer", "2 layers".
inline std::string counted(int64_t n, const char* noun) { return absl::StrCat(n, " ", noun, n == 1 ? "" : "s"); }

}  // namespace rondo
