#include "rondo/runtime/io/json.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::io {
namespace {
bool is_digit(char c) { return c >= '0' && c <= '9'; }
}  // namespace

void JsonReader::fail(std::string_view reason) const {
  throw FileError(path_, absl::StrCat(std::string(reason), " at byte ", at_, " of the JSON text"));
}

void JsonReader::space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
    ++at_;
}

bool JsonReader::accept(char c) {
  space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char c, const char* what) {
  if (!accept(c)) fail(absl::StrCat("expected ", what));
}

bool JsonReader::accept_word(std::string_view word) {
  if (!text_.substr(at_).starts_with(word)) return false;
  at_ += word.size();
  return true;
}

char JsonReader::peek() {
  space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::finish() {
  space();
  if (at_ != text_.size()) fail("unexpected text after the end");
}

void JsonReader::object(absl::FunctionRef<void(std::string&)> member) {
  expect('{', "an object");
  if (accept('}')) return;
  do {
    if (peek() != '"') fail("expected a name in quotes");
    std::string key = string();
    expect(':', "':'");
    member(key);
  } while (accept(','));
  expect('}', "',' or '}'");
}

void JsonReader::array(absl::FunctionRef<void()> element) {
  expect('[', "an array");
  if (accept(']')) return;
  do {
    element();
  } while (accept(','));
  expect(']', "',' or ']'");
}

uint32_t JsonReader::hex4() {
  uint32_t value = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end - digits.data() != 4) fail("expected four hexadecimal digits after \\u");
  at_ += 4;
  return value;
}

std::string JsonReader::string() {
  expect('"', "a string");
  std::string out;
  for (;;) {
    // Copies each run of characters without escapes at once.
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') {
      if (static_cast<uint8_t>(text_[at_]) < 0x20) fail("control character in a string");
      const int length = decode_utf8(text_, at_).length;
      if (length == 0) fail("invalid UTF-8 in a string");
      at_ += static_cast<size_t>(length);
    }
    out.append(text_, start, at_ - start);
    if (at_ >= text_.size()) fail("unterminated string");
    if (text_[at_++] == '"') return out;
    if (at_ >= text_.size()) fail("unterminated string");
    switch (text_[at_++]) {
      case '"': out += '"'; break;
      case '\\': out += '\\'; break;
      case '/': out += '/'; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case 'u': {
        uint32_t value = hex4();
        if (value >= 0xD800 && value <= 0xDBFF) {  // the first half of a UTF-16 pair
          if (!accept_word("\\u")) fail("lone surrogate in a string");
          const uint32_t low = hex4();
          if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate in a string");
          value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
        } else if (value >= 0xDC00 && value <= 0xDFFF) {
          fail("lone surrogate in a string");
        }
        append_utf8(out, value);
        break;
      }
      default: fail("unknown escape in a string");
    }
  }
}

std::string_view JsonReader::number() {
  space();
  const size_t start = at_;
  const auto digits = [&] {
    if (at_ >= text_.size() || !is_digit(text_[at_])) fail("expected a number");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  };
  if (at_ < text_.size() && text_[at_] == '-') ++at_;
  if (at_ < text_.size() && text_[at_] == '0') ++at_;  // no digit may follow a leading zero
  else digits();
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
  return text_.substr(start, at_ - start);
}

uint64_t JsonReader::unsigned_integer() {
  const char first = peek();
  if (first != '-' && !is_digit(first)) fail("expected a non-negative integer");
  const std::string_view digits = number();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) fail("an integer is above 2^64 - 1");
  if (error != std::errc() || end != digits.data() + digits.size())
    fail("expected a non-negative integer, found " + std::string(digits.substr(0, 32)));
  return value;
}

bool JsonReader::boolean() {
  space();
  if (accept_word("true")) return true;
  if (accept_word("false")) return false;
  fail("expected true or false");
}

void JsonReader::skip() { skip_value(0); }

void JsonReader::skip_value(int depth) {
  if (depth == kMaxDepth) fail("nested too deeply");
  switch (peek()) {
    case '{': object([&](std::string&) { skip_value(depth + 1); }); break;
    case '[': array([&] { skip_value(depth + 1); }); break;
    case '"': string(); break;
    case 't':
    case 'f': boolean(); break;
    case 'n':
      if (!accept_word("null")) fail("expected a value");
      break;
    default: number();
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<uint8_t>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[static_cast<uint8_t>(c) >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

std::string shown(std::string_view name) {
  constexpr size_t kShown = 120;
  size_t end = std::min(name.size(), kShown);
  while (end < name.size() && end > 0 && (static_cast<uint8_t>(name[end]) & 0xC0) == 0x80) --end;
  std::string out;
  append_json_string(out, name.substr(0, end));
  return end < name.size() ? out + "..." : out;
}

}  // namespace rondo::io
