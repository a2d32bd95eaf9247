// Functions that the readers of tokenizer files share.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text {

// Reads an object. `field` reads the value of a key that it knows, and returns false for an unknown key. Throws
// FileError for an unknown key and for a key that appears twice. `where` names the object in errors.
inline void read_fields(io::JsonReader& json, const std::string& where,
                        absl::FunctionRef<bool(const std::string&)> field) {
  std::vector<std::string> seen;
  json.object([&](std::string& key) {
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      json.fail(absl::StrCat(where, ": field ", io::shown(key), " appears twice"));
    seen.push_back(key);
    if (!field(key)) json.fail(absl::StrCat(where, ": field ", io::shown(key), " is not supported"));
  });
}

// If the next value is null, reads it and returns true.
inline bool read_null(io::JsonReader& json) {
  if (json.peek() != 'n') return false;
  json.skip();
  return true;
}
inline std::optional<std::string> read_optional_string(io::JsonReader& json) {
  if (read_null(json)) return std::nullopt;
  return json.string();
}
// Reads an integer that must fit into an int32.
inline int32_t read_int32(io::JsonReader& json, const std::string& what) {
  const uint64_t value = json.unsigned_integer();
  if (value > INT32_MAX) json.fail(absl::StrCat(what, " is above 2^31 - 1"));
  return static_cast<int32_t>(value);
}
// Returns the "type" of the next object without reading the object; "" if it has none.
inline std::string peek_type(const io::JsonReader& json, const std::string& where) {
  io::JsonReader ahead = json;
  std::string type;
  if (ahead.peek() != '{') ahead.fail(absl::StrCat(where, ": expected an object or null"));
  ahead.object([&](std::string& key) {
    if (key == "type") type = ahead.string();
    else ahead.skip();
  });
  return type;
}
// The deepest nesting of "Sequence" objects that is accepted. Real files stay below it.
inline constexpr int kMaxNesting = 8;
inline constexpr size_t kMostSteps = 64;  // the longest list of normalizers, pre-tokenizers or decoders

}  // namespace rondo::text
