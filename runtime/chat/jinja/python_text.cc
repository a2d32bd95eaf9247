#include "rondo/runtime/chat/jinja/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text::jinja {
namespace {

struct CaseRun {
  uint32_t first, last, stride;
  int32_t delta;
};
struct Expansion {
  uint32_t point, to[3];
};
struct Range {
  uint32_t first, last;
};
constexpr CaseRun kUpper[] = {
#define RONDO_UPPER
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_UPPER
};
constexpr Expansion kUpperExpansions[] = {
#define RONDO_UPPER_EXPANSIONS
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_UPPER_EXPANSIONS
};
constexpr CaseRun kTitle[] = {
#define RONDO_TITLE
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_TITLE
};
constexpr Expansion kTitleExpansions[] = {
#define RONDO_TITLE_EXPANSIONS
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_TITLE_EXPANSIONS
};
constexpr Range kCased[] = {
#define RONDO_CASED
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_CASED
};
constexpr Range kCaseIgnorable[] = {
#define RONDO_CASE_IGNORABLE
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_CASE_IGNORABLE
};
constexpr Range kUppercase[] = {
#define RONDO_UPPERCASE
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_UPPERCASE
};
constexpr Range kLowercase[] = {
#define RONDO_LOWERCASE
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_LOWERCASE
};
constexpr Range kDigit[] = {
#define RONDO_DIGIT
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_DIGIT
};
constexpr Range kNumeric[] = {
#define RONDO_NUMERIC
#include "rondo/runtime/chat/jinja/case_data.inc"
#undef RONDO_NUMERIC
};

template <size_t N> bool contains(const Range (&ranges)[N], uint32_t point) {
  const auto* after = std::upper_bound(std::begin(ranges), std::end(ranges), point,
                                       [](uint32_t value, const Range& range) { return value < range.first; });
  return after != std::begin(ranges) && point <= after[-1].last;
}

bool is_ascii_upper(uint32_t point) { return point >= 'A' && point <= 'Z'; }
bool is_ascii_lower(uint32_t point) { return point >= 'a' && point <= 'z'; }
bool is_cased(uint32_t point) {
  return point < 0x80 ? is_ascii_upper(point) || is_ascii_lower(point) : contains(kCased, point);
}
bool is_case_ignorable(uint32_t point) {
  if (point >= 0x80) return contains(kCaseIgnorable, point);
  return point == '\'' || point == '.' || point == ':' || point == '^' || point == '`';
}

void append_point(Text& out, uint32_t point) {
  std::string bytes;
  io::append_utf8(bytes, point);
  out += bytes;
}

template <size_t N, size_t M>
void append_changed(Text& out, uint32_t point, const CaseRun (&runs)[N], const Expansion (&expansions)[M]) {
  if (point < 0x80) {
    out.push_back(static_cast<char>(is_ascii_lower(point) ? point - 32 : point));
    return;
  }
  const auto* expansion = std::lower_bound(std::begin(expansions), std::end(expansions), point,
                                           [](const Expansion& one, uint32_t value) { return one.point < value; });
  if (expansion != std::end(expansions) && expansion->point == point) {
    for (const uint32_t to : expansion->to)
      if (to != 0) append_point(out, to);
    return;
  }
  const auto* after = std::upper_bound(std::begin(runs), std::end(runs), point,
                                       [](uint32_t value, const CaseRun& run) { return value < run.first; });
  if (after != std::begin(runs)) {
    const CaseRun& run = after[-1];
    if (point <= run.last && (point - run.first) % run.stride == 0)
      point = static_cast<uint32_t>(static_cast<int32_t>(point) + run.delta);
  }
  append_point(out, point);
}

void append_upper(Text& out, uint32_t point) { append_changed(out, point, kUpper, kUpperExpansions); }
void append_title(Text& out, uint32_t point) { append_changed(out, point, kTitle, kTitleExpansions); }

// True if the capital sigma at `at` ends a word: it then has a lower case of its own (SpecialCasing.txt, Final_Sigma).
bool is_final_sigma(std::string_view text, size_t at) {
  size_t before = at;
  bool cased_before = false;
  while (before > 0) {
    before = previous_point(text, before);
    size_t next = before;
    const uint32_t point = next_point(text, next);
    if (is_case_ignorable(point)) continue;
    cased_before = is_cased(point);
    break;
  }
  if (!cased_before) return false;
  size_t after = at;
  next_point(text, after);
  while (after < text.size()) {
    const uint32_t point = next_point(text, after);
    if (is_case_ignorable(point)) continue;
    return !is_cased(point);
  }
  return true;
}

// Appends the lower case of the code point that begins at `at`, and moves `at` behind it.
void append_lower(Text& out, std::string_view text, size_t& at) {
  const size_t begin = at;
  const uint32_t point = next_point(text, at);
  if (point == 0x3A3) {
    append_point(out, is_final_sigma(text, begin) ? 0x3C2 : 0x3C3);
    return;
  }
  const Lower lower = to_lower(point);
  append_point(out, lower.first);
  if (lower.second != 0) append_point(out, lower.second);
}

bool is_line_end(uint32_t point) {
  return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 || point == 0x2028 ||
         point == 0x2029;
}

}  // namespace

bool is_python_space(uint32_t point) { return is_white_space(point) || (point >= 0x1C && point <= 0x1F); }

int64_t count_points(std::string_view text) {
  Budget::read(text.size());
  int64_t count = 0;
  for (const char byte : text) count += (static_cast<uint8_t>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

size_t byte_of_point(std::string_view text, int64_t index) {
  Budget::convert(static_cast<size_t>(index));
  size_t at = 0;
  for (; index > 0; --index) next_point(text, at);
  return at;
}

Text every_point(std::string_view text, int64_t start, int64_t step, int64_t count) {
  Text out;
  if (count == 0) return out;
  Budget::convert(text.size());
  size_t at = byte_of_point(text, start);
  for (;;) {
    size_t end = at;
    next_point(text, end);
    out += text.substr(at, end - at);
    if (--count == 0) return out;
    for (int64_t i = 0; i < step; ++i) next_point(text, at);
    for (int64_t i = 0; i > step; --i) at = previous_point(text, at);
  }
}

Text repeat_text(std::string_view text, int64_t times) {
  Text out;
  if (times <= 0 || text.empty()) return out;
  Budget::expect(static_cast<uint64_t>(times), text.size());
  out.reserve(text.size() * static_cast<size_t>(times));
  Budget::steps(static_cast<uint64_t>(times) / 8);
  for (int64_t i = 0; i < times; ++i) out += text;
  return out;
}

Text to_upper_text(std::string_view text) {
  Budget::convert(text.size());
  Text out;
  for (size_t at = 0; at < text.size();) append_upper(out, next_point(text, at));
  return out;
}

Text to_lower_text(std::string_view text) {
  Budget::convert(text.size());
  Text out;
  for (size_t at = 0; at < text.size();) append_lower(out, text, at);
  return out;
}

Text to_title_text(std::string_view text) {
  Budget::convert(text.size());
  Text out;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    const uint32_t point = next_point(text, next);
    if (in_word) append_lower(out, text, at);
    else append_title(out, point), at = next;
    in_word = is_cased(point);
  }
  return out;
}

Text capitalize_text(std::string_view text) {
  Budget::convert(text.size());
  Text out;
  size_t at = 0;
  if (!text.empty()) append_title(out, next_point(text, at));
  while (at < text.size()) append_lower(out, text, at);
  return out;
}

Text title_words(std::string_view text) {
  Budget::convert(text.size());
  const auto divides = [](uint32_t point) {
    return point == '-' || point == '(' || point == '{' || point == '[' || point == '<' || is_python_space(point);
  };
  Text out;
  size_t at = 0;
  while (at < text.size()) {
    // Finds the end of a run of dividers, or of a run of other characters.
    size_t end = at;
    const bool dividing = divides(next_point(text, end));
    while (end < text.size()) {
      size_t next = end;
      if (divides(next_point(text, next)) != dividing) break;
      end = next;
    }
    const std::string_view item = text.substr(at, end - at);
    size_t rest = 0;
    append_upper(out, next_point(item, rest));
    out += to_lower_text(item.substr(rest));
    at = end;
  }
  return out;
}

Finder::Finder(std::string_view wanted, Direction direction) : wanted_(wanted), direction_(direction) {
  if (wanted.size() == 1) return;
  shorter_.resize(wanted.size());
  for (size_t i = 1, fit = 0; i < wanted.size(); ++i) {
    while (fit > 0 && at(wanted, i) != at(wanted, fit)) fit = shorter_[fit - 1];
    if (at(wanted, i) == at(wanted, fit)) ++fit;
    shorter_[i] = static_cast<uint32_t>(fit);
  }
}

size_t Finder::find(std::string_view text) const {
  if (wanted_.size() > text.size()) return std::string_view::npos;
  const char first = at(wanted_, 0);
  size_t fit = 0, i = 0, compared = 0;
  for (; i < text.size() && fit < wanted_.size(); ++compared) {
    if (fit == 0) {
      if (direction_ == kForwards) i = std::min(text.find(first, i), text.size());
      else
        while (i < text.size() && at(text, i) != first) ++i;
      if (i < text.size()) ++i, fit = 1;
    } else if (at(text, i) == at(wanted_, fit)) {
      ++i, ++fit;
    } else {
      fit = shorter_[fit - 1];
    }
  }
  Budget::steps(1 + i / 64 + compared / 8);
  if (fit < wanted_.size()) return std::string_view::npos;
  return direction_ == kForwards ? i - fit : text.size() - i;
}

size_t find_text(std::string_view text, std::string_view wanted, Finder::Direction direction) {
  if (wanted.size() > text.size()) return std::string_view::npos;  // checked first, because a Finder takes memory
  if (wanted.empty()) return direction == Finder::kForwards ? 0 : text.size();
  return Finder(wanted, direction).find(text);
}

std::string_view strip_text(std::string_view text, Ends ends, std::optional<std::string_view> chars) {
  List<uint32_t> points;  // the code points of `chars`, sorted
  if (chars) {
    Budget::convert(chars->size());
    for (size_t at = 0; at < chars->size();) points.push_back(next_point(*chars, at));
    std::sort(points.begin(), points.end());
  }
  const auto stripped = [&](size_t at) {
    const uint32_t point = next_point(text, at);
    return chars ? std::binary_search(points.begin(), points.end(), point) : is_python_space(point);
  };
  size_t begin = 0, end = text.size();
  while (ends != Ends::kRight && begin < end) {
    if (!stripped(begin)) break;
    next_point(text, begin);
  }
  while (ends != Ends::kLeft && end > begin) {
    const size_t before = previous_point(text, end);
    if (!stripped(before)) break;
    end = before;
  }
  Budget::convert(text.size() - (end - begin));
  return text.substr(begin, end - begin);
}

Parts split_text(std::string_view text, std::optional<std::string_view> separator, int64_t most) {
  Parts out;
  if (separator) {
    if (most < 0) most = INT64_MAX;
    const Finder finder(*separator);
    for (; most != 0; --most) {
      const size_t found = finder.find(text);
      if (found == std::string_view::npos) break;
      out.push_back(text.substr(0, found));
      text.remove_prefix(found + separator->size());
    }
    out.push_back(text);
    return out;
  }
  text = strip_text(text, Ends::kLeft);
  Budget::convert(text.size());
  while (!text.empty()) {
    if (most == 0) {
      out.push_back(text);  // the last part keeps the white space behind it
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (is_python_space(next_point(text, next))) break;
      end = next;
    }
    out.push_back(text.substr(0, end));
    text = strip_text(text.substr(end), Ends::kLeft);
    if (most > 0) --most;
  }
  return out;
}

Parts rsplit_text(std::string_view text, std::optional<std::string_view> separator, int64_t most) {
  Parts out;
  if (separator) {
    if (most < 0) most = INT64_MAX;
    const Finder finder(*separator, Finder::kBackwards);
    for (; most != 0; --most) {
      const size_t found = finder.find(text);
      if (found == std::string_view::npos) break;
      out.push_back(text.substr(found + separator->size()));
      text = text.substr(0, found);
    }
    out.push_back(text);
  } else {
    text = strip_text(text, Ends::kRight);
    Budget::convert(text.size());
    while (!text.empty()) {
      if (most == 0) {
        out.push_back(text);  // the first part keeps the white space before it
        break;
      }
      size_t begin = text.size();
      while (begin > 0) {
        const size_t before = previous_point(text, begin);
        size_t next = before;
        if (is_python_space(next_point(text, next))) break;
        begin = before;
      }
      out.push_back(text.substr(begin));
      text = strip_text(text.substr(0, begin), Ends::kRight);
      if (most > 0) --most;
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Parts split_lines(std::string_view text, bool keep_ends) {
  Budget::convert(text.size());
  Parts out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const uint32_t point = next_point(text, at);
    if (!is_line_end(point)) continue;
    if (point == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

bool is_class(std::string_view text, TextClass wanted) {
  Budget::convert(text.size());
  if (wanted == TextClass::kAscii)
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  bool any_cased = false, in_word = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t point = next_point(text, at);
    const bool ascii = point < 0x80;
    const bool upper = ascii ? is_ascii_upper(point) : contains(kUppercase, point);
    const bool lower = ascii ? is_ascii_lower(point) : contains(kLowercase, point);
    const bool title = is(point, bit(kLt));
    const bool alpha = is(point, kLetter);
    const bool decimal = is(point, bit(kNd));
    const bool digit = ascii ? decimal : contains(kDigit, point);
    const bool numeric = ascii ? decimal : contains(kNumeric, point);
    switch (wanted) {
      case TextClass::kAlpha:
        if (!alpha) return false;
        break;
      case TextClass::kAlnum:
        if (!(alpha || decimal || digit || numeric)) return false;
        break;
      case TextClass::kDigit:
        if (!digit) return false;
        break;
      case TextClass::kDecimal:
        if (!decimal) return false;
        break;
      case TextClass::kNumeric:
        if (!numeric) return false;
        break;
      case TextClass::kSpace:
        if (!is_python_space(point)) return false;
        break;
      case TextClass::kLower:
        if (upper || title) return false;
        any_cased |= lower;
        break;
      case TextClass::kUpper:
        if (lower || title) return false;
        any_cased |= upper;
        break;
      case TextClass::kTitle:
        if ((upper || title) && in_word) return false;
        if (lower && !in_word) return false;
        in_word = upper || title || lower;
        any_cased |= in_word;
        break;
      case TextClass::kAscii: break;
    }
  }
  if (wanted == TextClass::kLower || wanted == TextClass::kUpper || wanted == TextClass::kTitle) return any_cased;
  return !text.empty();
}

bool is_printable(uint32_t point) {
  if (point < 0x80) return point >= 0x20 && point < 0x7F;
  return !is(point, kOther | kSeparator);
}

Text repr_text(std::string_view text) {
  Budget::convert(text.size());
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  Text out(1, quote);
  static constexpr char kHex[] = "0123456789abcdef";
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t point = next_point(text, at);
    if (point == static_cast<uint32_t>(quote) || point == '\\') out.push_back('\\'), out.push_back(text[begin]);
    else if (point == '\n') out += "\\n";
    else if (point == '\r') out += "\\r";
    else if (point == '\t') out += "\\t";
    else if (is_printable(point)) out += text.substr(begin, at - begin);
    else {
      const int digits = point < 0x100 ? 2 : point < 0x10000 ? 4 : 8;
      out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
      for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out.push_back(kHex[point >> shift & 0xF]);
    }
  }
  out.push_back(quote);
  return out;
}

std::string repr_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // Writes the shortest digits that read back as the same number. Chooses the fixed or the scientific form as Python
  // does.
  char buffer[64];
  const auto scientific = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(scientific.ptr - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits = shortest.data() + e + 1;
  if (*digits == '+') ++digits;
  std::from_chars(digits, shortest.data() + shortest.size(), exponent);
  if (exponent >= -4 && exponent < 16) {
    char fixed[64];
    const auto end = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
    std::string out(fixed, end.ptr);
    if (out.find('.') == std::string::npos) out += ".0";
    return out;
  }
  std::string out(shortest.substr(0, e));
  const int size = std::abs(exponent);
  absl::StrAppend(&out, exponent < 0 ? "e-" : "e+", size < 10 ? "0" : "", size);
  return out;
}

}  // namespace rondo::text::jinja
