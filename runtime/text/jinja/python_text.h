// Python's str methods on UTF-8: positions count code points, case and classes are those of Unicode 14.
// REQUIRES everywhere: valid UTF-8. Thread safety: functions of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::text::jinja {

// str.isspace() of one code point: Unicode's White_Space, and the four separators of ASCII.
bool is_python_space(uint32_t point);
int64_t count_points(std::string_view text);
// Byte where code point `index` begins; the size of the text for index = count_points(text).
// REQUIRES: 0 <= index <= count_points(text).
size_t byte_of_point(std::string_view text, int64_t index);
// The code points as texts of their own.
std::vector<std::string_view> split_points(std::string_view text);

std::string to_upper_text(std::string_view text);
std::string to_lower_text(std::string_view text);
std::string to_title_text(std::string_view text);
std::string capitalize_text(std::string_view text);
// Jinja's filter `title`, which is not str.title().
std::string title_words(std::string_view text);

enum class Ends { kBoth, kLeft, kRight };
// str.strip(chars); without `chars`, white space.
std::string_view strip_text(std::string_view text, Ends side, std::optional<std::string_view> chars = std::nullopt);
// str.split(separator, most) and str.rsplit(). Without `separator`, at runs of white space. most < 0: no limit.
// REQUIRES: a separator is not empty.
std::vector<std::string_view> split_text(std::string_view text, std::optional<std::string_view> separator,
                                         int64_t most);
std::vector<std::string_view> rsplit_text(std::string_view text, std::optional<std::string_view> separator,
                                          int64_t most);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// str.isalpha() and so on: at least one character, and all of the class.
enum class TextClass { kAlpha, kAlnum, kDigit, kDecimal, kNumeric, kSpace, kLower, kUpper, kAscii, kTitle };
bool is_class(std::string_view text, TextClass wanted);
bool is_printable(uint32_t point);

// repr() of a str and of a float.
std::string repr_text(std::string_view text);
std::string repr_float(double value);

}  // namespace rondo::text::jinja
