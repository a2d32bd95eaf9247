// A strict pull parser of JSON (RFC 8259) for untrusted files. The caller asks for the value that its format allows
// next. Anything else (a float instead of a count, one more level of nesting) is an error that names its byte offset.
// Nothing is stored that the caller did not ask for: the reader holds one string at a time.
//
//   JsonReader json(path, text);
//   json.object([&](std::string& key) { sizes[key] = json.unsigned_integer(); });
//   json.finish();
//
// All errors are FileError(path, reason with the byte offset).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace rondo::io {

class JsonReader {
 public:
  // Keeps references: `text` and `path` must outlive the reader.
  JsonReader(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  // Calls `member` for each key. `member` may move from the key and must read exactly the key's value. The caller must
  // refuse duplicate keys itself.
  void object(absl::FunctionRef<void(std::string& key)> member);
  // Calls `element` before each value; `element` must read exactly that value.
  void array(absl::FunctionRef<void()> element);
  std::string string();
  // Reads an integer of digits only, without a sign, fraction or exponent; at most 2^64 - 1.
  uint64_t unsigned_integer();
  // Reads any number and returns its text, checked against the grammar.
  std::string_view number();
  bool boolean();
  // Reads past one value of any kind, nested at most kMaxDepth deep.
  void skip();
  // Returns the first character of the next value, which shows its kind: one of { [ " t f n - or a digit; 0 at the end.
  char peek();
  // Throws unless only whitespace is left.
  void finish();

  size_t position() const { return at_; }
  [[noreturn]] void fail(std::string_view reason) const;

  static constexpr int kMaxDepth = 64;

 private:
  void space();
  bool accept(char c);
  void expect(char c, const char* what);
  bool accept_word(std::string_view word);
  uint32_t hex4();
  void skip_value(int depth);

  const std::string& path_;
  std::string_view text_;
  size_t at_ = 0;
};

// Appends `text` as a JSON string, quotes included. REQUIRES: valid UTF-8.
void append_json_string(std::string& out, std::string_view text);
// Returns a name from a file as an error message shows it: escaped, in quotes, cut to a readable length.
std::string shown(std::string_view name);

}  // namespace rondo::io
