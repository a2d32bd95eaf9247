// A strict pull reader of JSON (RFC 8259) for files that nobody has vouched for. The caller asks for what its format
// allows next, so anything else (a float where a count belongs, one more level of nesting) is an error at its byte, and
// nothing is stored that was not asked for: memory is one string at a time.
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
  // Keeps references: `text` and `path` outlive the reader.
  JsonReader(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  // Calls `member` for each key, which it may move from; it must read exactly the value. Duplicate keys are the
  // caller's to refuse.
  void object(absl::FunctionRef<void(std::string& key)> member);
  // Calls `element` before each value; it must read exactly that value.
  void array(absl::FunctionRef<void()> element);
  std::string string();
  // Digits only: no sign, fraction or exponent; at most 2^64 - 1.
  uint64_t unsigned_integer();
  // The text of any number, checked against the grammar.
  std::string_view number();
  bool boolean();
  // Reads past one value of any kind, nested at most kMaxDepth deep.
  void skip();
  // First character of the next value, which tells its kind: one of { [ " t f n - or a digit; 0 at the end.
  char peek();
  // Nothing but whitespace may be left.
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
// A name from a file, fit for an error message: escaped, in quotes, cut to a readable length.
std::string shown(std::string_view name);

}  // namespace rondo::io
