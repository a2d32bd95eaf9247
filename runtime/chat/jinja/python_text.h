// Python's str methods on UTF-8: positions count code points, case and classes are those of Unicode 14. All take time
// linear in their texts, and charge it to the budget in force (budget.h).
// REQUIRES everywhere: valid UTF-8. Thread safe: results depend on the arguments only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rondo/runtime/chat/jinja/budget.h"

namespace rondo::text::jinja {

using Parts = List<std::string_view>;

// As Python's str.isspace() for one code point: true for Unicode's White_Space and the four separators of ASCII.
bool is_python_space(uint32_t point);
int64_t count_points(std::string_view text);
// Returns the byte where code point `index` begins; the size of the text for index = count_points(text).
// REQUIRES: 0 <= index <= count_points(text).
size_t byte_of_point(std::string_view text, int64_t index);
// Returns `count` code points: those at start, start + step, start + 2 step, ... REQUIRES: all of these exist,
// step != 0.
Text every_point(std::string_view text, int64_t start, int64_t step, int64_t count);
Text repeat_text(std::string_view text, int64_t times);

Text to_upper_text(std::string_view text);
Text to_lower_text(std::string_view text);
Text to_title_text(std::string_view text);
Text capitalize_text(std::string_view text);
// As Jinja's filter `title`, which differs from Python's str.title().
Text title_words(std::string_view text);

// Finds one text in others, in time linear in both (Knuth, Morris, Pratt 1977).
//
//   const Finder finder("aab");
//   size_t begin = finder.find(text);     // npos: not found
class Finder {
 public:
  enum Direction { kForwards, kBackwards };
  // Keeps a reference to `wanted`. REQUIRES: `wanted` is not empty.
  explicit Finder(std::string_view wanted, Direction direction = kForwards);
  // Returns the position of the first match; kBackwards: of the last one.
  size_t find(std::string_view text) const;

 private:
  char at(std::string_view text, size_t i) const { return text[direction_ == kForwards ? i : text.size() - 1 - i]; }

  const std::string_view wanted_;
  const Direction direction_;
  // If i + 1 bytes match and the next one does not, shorter_[i] bytes still match.
  List<uint32_t> shorter_;
};
// Also finds an empty `wanted`: at the very start, or at the very end for kBackwards.
size_t find_text(std::string_view text, std::string_view wanted, Finder::Direction direction = Finder::kForwards);

enum class Ends { kBoth, kLeft, kRight };
// As Python's text.strip(chars). Without `chars`, strips white space.
std::string_view strip_text(std::string_view text, Ends side, std::optional<std::string_view> chars = std::nullopt);
// As Python's text.split(separator, most) and rsplit(). Without `separator`, splits at runs of white space. most < 0:
// no limit. REQUIRES: the separator is not empty.
Parts split_text(std::string_view text, std::optional<std::string_view> separator, int64_t most);
Parts rsplit_text(std::string_view text, std::optional<std::string_view> separator, int64_t most);
Parts split_lines(std::string_view text, bool keep_ends);

// As Python's text.isalpha() and so on: true if the text has at least one character and all are of the class.
enum class TextClass { kAlpha, kAlnum, kDigit, kDecimal, kNumeric, kSpace, kLower, kUpper, kAscii, kTitle };
bool is_class(std::string_view text, TextClass wanted);
bool is_printable(uint32_t point);

// As Python's repr() of a str and of a float.
Text repr_text(std::string_view text);
std::string repr_float(double value);

}  // namespace rondo::text::jinja
