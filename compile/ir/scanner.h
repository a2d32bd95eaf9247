// Reads the compiler's text formats (graphs, loop kernels, reproducers) word by word. Errors say in which line it
// stopped. Blanks between words do not matter, newlines do; `#` begins a comment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rondo/runtime/base/dtype.h"

namespace rondo::compile {

class Scanner {
 public:
  explicit Scanner(std::string_view text, int first_line = 1) : text_(text), line_(first_line) {}

  // Consumes `token` if it is next. A token of letters must end where the word ends.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  // Returns true if `token` is next. Consumes nothing.
  bool next_is(std::string_view token);
  bool next_is_integer();  // true for an integer, not for a real number
  // Reads the next run of letters, digits, '_', '.' and '-'.
  std::string_view word();
  int64_t integer();
  double real();  // in the format of exact_text()
  DType dtype();
  bool at_end_of_line();
  // Requires that the rest of the line is empty, and goes to the next line that is not empty.
  void end_line();
  bool at_end();
  int line() const { return line_; }
  // Throws Error "line 3: what".
  [[noreturn]] void fail(const std::string& what) const { fail(what, line_); }
  [[noreturn]] void fail(const std::string& what, int line) const;

 private:
  void skip_blanks();
  std::string_view text_;
  size_t at_ = 0;
  int line_;
};

// Returns the shortest decimal text that reads back as the same double and does not look like an integer: "0.1", "1.0",
// "-inf", "nan". A NaN other than the usual quiet one is written with its bits: "nan:7ff8000000000001".
std::string exact_text(double value);

}  // namespace rondo::compile
