#include "rondo/compile/ir/scanner.h"

#include <bit>
#include <charconv>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"

namespace rondo::compile {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

}  // namespace

std::string exact_text(double value) {
  if (value != value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    return bits == std::bit_cast<uint64_t>(kNaN) ? "nan" : formatted("nan:%016x", bits);
  }
  char buffer[40];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, static_cast<size_t>(result.ptr - buffer));
  if (text.find_first_of(".einf") == text.npos) text += ".0";
  return text;
}

void Scanner::fail(const std::string& what, int line) const { throw Error(absl::StrCat("line ", line, ": ", what)); }

void Scanner::skip_blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  if (at_ < text_.size() && text_[at_] == '#')
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
}

bool Scanner::next_is(std::string_view token) {
  skip_blanks();
  if (!text_.substr(at_).starts_with(token)) return false;
  const size_t after = at_ + token.size();
  return !in_word(token.back()) || after >= text_.size() || !in_word(text_[after]);
}

bool Scanner::next_is_integer() {
  skip_blanks();
  const size_t sign = at_ < text_.size() && text_[at_] == '-' ? 1 : 0;
  const size_t end = text_.find_first_not_of("0123456789", at_ + sign);
  const size_t stop = end == text_.npos ? text_.size() : end;
  return stop > at_ + sign && (stop == text_.size() || !in_word(text_[stop]));
}

bool Scanner::accept(std::string_view token) {
  if (!next_is(token)) return false;
  at_ += token.size();
  return true;
}

void Scanner::expect(std::string_view token) {
  if (accept(token)) return;
  std::string_view found = text_.substr(at_);
  found = found.substr(0, found.find('\n')).substr(0, 20);
  fail(absl::StrCat("expected \"", std::string(token), "\", found \"", std::string(found), "\""));
}

std::string_view Scanner::word() {
  skip_blanks();
  const size_t begin = at_;
  while (at_ < text_.size() && in_word(text_[at_])) ++at_;
  if (at_ == begin) fail("expected a word");
  return text_.substr(begin, at_ - begin);
}

int64_t Scanner::integer() {
  skip_blanks();
  int64_t value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) fail("expected an integer");
  at_ += static_cast<size_t>(end - begin);
  return value;
}

double Scanner::real() {
  if (accept("nan:")) {
    uint64_t bits = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), bits, 16);
    if (error != std::errc()) fail("expected the bits of a NaN");
    at_ += static_cast<size_t>(end - begin);
    return std::bit_cast<double>(bits);
  }
  if (accept("nan")) return kNaN;
  skip_blanks();
  double value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) fail("expected a number");
  at_ += static_cast<size_t>(end - begin);
  return value;
}

DType Scanner::dtype() {
  const std::string_view name = word();
  for (int i = 0; i < kNumDTypes; ++i)
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  fail(absl::StrCat("no dtype \"", std::string(name), "\""));
}

bool Scanner::at_end_of_line() {
  skip_blanks();
  return at_ == text_.size() || text_[at_] == '\n';
}

void Scanner::end_line() {
  if (!at_end_of_line()) fail(absl::StrCat("nothing more was expected: \"", std::string(text_.substr(at_, 20)), "\""));
  while (at_ < text_.size() && at_end_of_line()) {
    if (at_ == text_.size()) return;
    ++at_;
    ++line_;
  }
}

bool Scanner::at_end() {
  while (at_end_of_line() && at_ < text_.size()) {
    ++at_;
    ++line_;
  }
  return at_ == text_.size();
}

}  // namespace rondo::compile
