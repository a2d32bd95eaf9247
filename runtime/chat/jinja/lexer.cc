#include "rondo/runtime/chat/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/chat/jinja/template.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text::jinja {
namespace {

// Replaces \r\n and \r by \n, and removes one line break at the very end.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

constexpr std::string_view kSigns[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                       "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}
  List<Token> run();

 private:
  [[noreturn]] void fail(std::string_view what) const { throw TemplateError(line_, std::string(what)); }
  bool at(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  // Moves to `end`, and counts the lines on the way.
  void skip_to(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    line_starting_ = end > at_ && source_[end - 1] == '\n';
    at_ = end;
  }
  size_t behind_spaces(size_t from) const {
    while (from < source_.size()) {
      size_t next = from;
      if (!is_python_space(next_point(source_, next))) break;
      from = next;
    }
    return from;
  }
  void push(Token::Type type, std::string text = {}) {
    tokens_.push_back({.type = type, .line = line_, .text = std::move(text)});
  }

  // Adds the text before the tag at `tag`. `sign`: the sign of that tag: '-', '+', or 0 for none.
  void push_text(size_t tag, char sign, bool may_lstrip);
  // Returns the position behind the end of a tag: behind `close` with its sign ('-' or '+'), and behind the white space
  // or line break that the tag removes. Returns 0 if no tag ends at `from`.
  size_t behind_end(size_t from, std::string_view close, bool eats_line) const;
  void root();
  bool raw(size_t tag, char sign);
  void comment();
  void inside(std::string_view close, Token::Type end, bool eats_line);
  void expression_token();
  bool number();
  void string_literal();

  const std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  List<Token> tokens_;
  std::string open_;  // closing brackets that must still come
};

void Lexer::push_text(size_t tag, char sign, bool may_lstrip) {
  std::string_view text = source_.substr(at_, tag - at_);
  if (sign == '-') {
    text = strip_text(text, Ends::kRight);
  } else if (sign != '+' && may_lstrip) {
    const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line > 0 || line_starting_) {
      const std::string_view before = text.substr(line);
      if (!before.empty() && strip_text(before, Ends::kBoth).empty()) text = text.substr(0, line);
    }
  }
  if (!text.empty()) push(Token::kText, std::string(text));
}

size_t Lexer::behind_end(size_t from, std::string_view close, bool eats_line) const {
  const std::string_view rest = source_.substr(from);
  if (rest.starts_with('-') && rest.substr(1).starts_with(close)) return behind_spaces(from + 1 + close.size());
  if (eats_line && rest.starts_with('+') && rest.substr(1).starts_with(close)) return from + 1 + close.size();
  if (!rest.starts_with(close)) return 0;
  size_t end = from + close.size();
  if (eats_line && end < source_.size() && source_[end] == '\n') ++end;
  return end;
}

// Reads a {% raw %} block, whose text is not parsed. Returns false if the tag is not {% raw %}.
bool Lexer::raw(size_t tag, char sign) {
  size_t at = behind_spaces(tag + 2 + (sign != 0 ? 1 : 0));
  if (!source_.substr(at).starts_with("raw")) return false;
  at = behind_spaces(at + 3);
  const std::string_view rest = source_.substr(at);
  size_t body = 0;
  if (rest.starts_with("-%}")) body = behind_spaces(at + 3);
  else if (rest.starts_with("%}")) body = at + 2;
  else return false;
  push_text(tag, sign, true);
  skip_to(body);
  line_starting_ = body > 0 && source_[body - 1] == '\n';
  for (size_t found = at_;; ++found) {
    found = source_.find("{%", found);
    if (found == std::string_view::npos) fail("a raw block is not closed: {% endraw %} is missing");
    size_t next = found + 2;
    char end_sign = 0;
    if (next < source_.size() && (source_[next] == '-' || source_[next] == '+')) end_sign = source_[next++];
    next = behind_spaces(next);
    if (!source_.substr(next).starts_with("endraw")) continue;
    const size_t end = behind_end(behind_spaces(next + 6), "%}", true);
    if (end == 0) continue;
    push_text(found, end_sign, true);
    skip_to(end);
    return true;
  }
}

void Lexer::comment() {
  for (size_t found = at_; found < source_.size(); ++found) {
    found = source_.find("#}", found);
    if (found == std::string_view::npos) break;
    size_t sign = found;
    if (found > at_ && (source_[found - 1] == '-' || source_[found - 1] == '+')) sign = found - 1;
    skip_to(behind_end(sign, "#}", true));
    return;
  }
  fail("a comment is not closed: #} is missing");
}

void Lexer::root() {
  size_t tag = at_;
  for (;; ++tag) {
    tag = source_.find('{', tag);
    if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
      if (at_ < source_.size()) push(Token::kText, std::string(source_.substr(at_)));
      skip_to(source_.size());
      return;
    }
    const char kind = source_[tag + 1];
    if (kind == '{' || kind == '%' || kind == '#') break;
  }
  const char kind = source_[tag + 1];
  const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  const char sign = after == '-' || after == '+' ? after : '\0';
  if (kind == '%' && raw(tag, sign)) return;
  push_text(tag, sign, kind != '{');
  skip_to(tag + 2 + (sign != 0 ? 1 : 0));
  if (kind == '#') return comment();
  push(kind == '{' ? Token::kOutputBegin : Token::kBlockBegin);
  if (kind == '{') inside("}}", Token::kOutputEnd, false);
  else inside("%}", Token::kBlockEnd, true);
}

void Lexer::inside(std::string_view close, Token::Type end, bool eats_line) {
  open_.clear();
  while (at_ < source_.size()) {
    if (open_.empty()) {
      if (const size_t behind = behind_end(at_, close, eats_line); behind != 0) {
        push(end);
        skip_to(behind);
        return;
      }
    }
    if (const size_t behind = behind_spaces(at_); behind > at_) {
      skip_to(behind);
      continue;
    }
    expression_token();
  }
  // If the end of a tag is missing, the parser reports it.
}

bool Lexer::number() {
  // Returns the end of the digits that begin at `from`; single underscores may stand between digits.
  const auto digits = [&](size_t from, int base) {
    size_t end = from;
    const auto is_one = [&](size_t i) {
      if (i >= source_.size()) return false;
      const char c = source_[i];
      const int value = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      return value < base;
    };
    while (is_one(end) || (end > from && end < source_.size() && source_[end] == '_' && is_one(end + 1))) ++end;
    return end;
  };
  const auto plain = [&](size_t from, size_t end) {
    std::string out(source_.substr(from, end - from));
    out.erase(std::remove(out.begin(), out.end(), '_'), out.end());
    return out;
  };
  const auto whole = [&](const std::string& text, int base, size_t end) {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc()) fail("an integer beyond 64 bits is not supported");
    tokens_.push_back({.type = Token::kInteger, .line = line_, .text = text, .number = Value::integer(value)});
    skip_to(end);
    return true;
  };
  if (!is_digit(source_[at_])) return false;
  const size_t end = digits(at_, 10);
  // A float has digits, and then a fraction (a point and digits), an exponent, or both. Directly after a point
  // there is no float.
  size_t stop = end;
  if (at_ == 0 || source_[at_ - 1] != '.') {
    if (stop < source_.size() && source_[stop] == '.')
      if (const size_t fraction = digits(stop + 1, 10); fraction > stop + 1) stop = fraction;
    if (stop < source_.size() && (source_[stop] == 'e' || source_[stop] == 'E')) {
      size_t power = stop + 1;
      if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
      if (const size_t last = digits(power, 10); last > power) stop = last;
    }
  }
  if (stop > end) {
    const std::string text = plain(at_, stop);
    double value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
      fail("a number beyond what a double holds is not supported");
    tokens_.push_back({.type = Token::kFloat, .line = line_, .text = text, .number = Value::real(value)});
    skip_to(stop);
    return true;
  }
  if (source_[at_] == '0' && at_ + 1 < source_.size()) {
    const char kind = static_cast<char>(source_[at_ + 1] | 0x20);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    size_t from = at_ + 2;
    if (base != 0 && from < source_.size() && source_[from] == '_') ++from;
    if (base != 0)
      if (const size_t last = digits(from, base); last > from) return whole(plain(from, last), base, last);
    size_t zeros = at_ + 1;
    while (zeros < source_.size() && (source_[zeros] == '0' || (source_[zeros] == '_' && zeros + 1 < source_.size() &&
                                                                source_[zeros + 1] == '0')))
      ++zeros;
    return whole("0", 10, zeros);
  }
  return whole(plain(at_, end), 10, end);
}

void Lexer::string_literal() {
  const char quote = source_[at_];
  size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) fail("a text in quotes is not closed");
  const std::string_view raw = source_.substr(at_ + 1, end - at_ - 1);
  std::string out;
  const auto hex = [&](size_t& i, size_t count) {
    uint32_t value = 0;
    const std::string_view digits = raw.substr(i + 1, count);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || digits.size() != count || stop != digits.data() + count || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000))
      fail("an escape in a text in quotes names no character");
    io::append_utf8(out, value);
    i += count;
  };
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      out.push_back(raw[i]);
      continue;
    }
    const char kind = raw[++i];
    switch (kind) {
      case '\n': break;
      case '\\':
      case '\'':
      case '"': out.push_back(kind); break;
      case 'n': out.push_back('\n'); break;
      case 't': out.push_back('\t'); break;
      case 'r': out.push_back('\r'); break;
      case 'a': out.push_back('\a'); break;
      case 'b': out.push_back('\b'); break;
      case 'f': out.push_back('\f'); break;
      case 'v': out.push_back('\v'); break;
      case 'x': hex(i, 2); break;
      case 'u': hex(i, 4); break;
      case 'U': hex(i, 8); break;
      case 'N': fail("\\N{...} in a text in quotes is not supported"); break;
      default:
        if (kind >= '0' && kind <= '7') {
          uint32_t value = 0;
          size_t digits = 0;
          for (; digits < 3 && i + digits < raw.size() && raw[i + digits] >= '0' && raw[i + digits] <= '7'; ++digits)
            value = value * 8 + static_cast<uint32_t>(raw[i + digits] - '0');
          io::append_utf8(out, value);
          i += digits - 1;
        } else if (static_cast<uint8_t>(kind) >= 0x80) {
          // jinja2 first replaces the character by an escape, such as \xe9. The backslash before the character then
          // escapes the backslash of \xe9, so jinja2 gives a different text.
          fail("a backslash before a character that is not ASCII is not supported");
        } else {
          out.push_back('\\');
          out.push_back(kind);
        }
    }
  }
  push(Token::kString, std::move(out));
  skip_to(end + 1);
}

void Lexer::expression_token() {
  const char c = source_[at_];
  if (number()) return;
  if (is_name_start(c)) {
    size_t end = at_;
    while (end < source_.size() && is_name_part(source_[end])) ++end;
    if (end < source_.size() && static_cast<uint8_t>(source_[end]) >= 0x80)
      fail("names that are not ASCII are not supported");
    push(Token::kName, std::string(source_.substr(at_, end - at_)));
    return skip_to(end);
  }
  if (c == '\'' || c == '"') return string_literal();
  for (const std::string_view sign : kSigns) {
    if (!at(sign)) continue;
    if (c == '(') open_.push_back(')');
    if (c == '[') open_.push_back(']');
    if (c == '{') open_.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (open_.empty()) fail(absl::StrCat("unexpected '", std::string(1, c), "'"));
      if (open_.back() != c)
        fail(absl::StrCat("unexpected '", std::string(1, c), "', expected '", std::string(1, open_.back()), "'"));
      open_.pop_back();
    }
    push(Token::kSign, std::string(sign));
    return skip_to(at_ + sign.size());
  }
  size_t next = at_;
  next_point(source_, next);
  fail("unexpected character " + io::shown(source_.substr(at_, next - at_)));
}

List<Token> Lexer::run() {
  while (at_ < source_.size()) root();
  push(Token::kEnd);
  return std::move(tokens_);
}

}  // namespace

List<Token> tokenize(std::string_view source) {
  const std::string normalized = normalize_newlines(source);
  return Lexer(normalized).run();
}

}  // namespace rondo::text::jinja
