// Unicode 14 for tokenizers: general categories, lower case, normal forms. The tables are part of Rondo, so that ids do
// not depend on a machine's libraries (unicode_*.inc, made by tests/reference/record_unicode.py).
//
// Note [Older tables]: the reference normalises with Unicode 9 and runs BERT's steps with Unicode 8. Rondo does the
// same: code points that were assigned later have no decomposition, no combining class, and the category of that time.
//
// Thread safety: everything here is immutable; the tables are unpacked at their first use.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "rondo/runtime/io/utf8.h"

namespace rondo::text {

// The general categories, in the order of unicode_data.inc.
enum Category : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
};
// Returns the bit of a category. A set of categories is one number with several bits.
constexpr uint32_t bit(Category category) { return uint32_t{1} << category; }
inline constexpr uint32_t kLetter = bit(kLu) | bit(kLl) | bit(kLt) | bit(kLm) | bit(kLo);
inline constexpr uint32_t kMark = bit(kMn) | bit(kMc) | bit(kMe);
inline constexpr uint32_t kNumber = bit(kNd) | bit(kNl) | bit(kNo);
inline constexpr uint32_t kPunctuation = bit(kPc) | bit(kPd) | bit(kPs) | bit(kPe) | bit(kPi) | bit(kPf) | bit(kPo);
inline constexpr uint32_t kSymbol = bit(kSm) | bit(kSc) | bit(kSk) | bit(kSo);
inline constexpr uint32_t kSeparator = bit(kZs) | bit(kZl) | bit(kZp);
inline constexpr uint32_t kOther = bit(kCn) | bit(kCc) | bit(kCf) | bit(kCs) | bit(kCo);

// REQUIRES, for all functions of this file: point <= 0x10FFFF.
Category category(uint32_t point);
inline bool is(uint32_t point, uint32_t categories) { return (bit(category(point)) & categories) != 0; }
// True for Unicode's White_Space.
bool is_white_space(uint32_t point);
// True for \w: alphabetic, marks, decimal digits, connectors. The reference has two regular expression engines. One
// follows UTS 18 and adds U+200C and U+200D. The other, Oniguruma, matches the patterns of tokenizer files.
enum class WordRule { kUts18, kOniguruma };
bool is_word(uint32_t point, WordRule rule = WordRule::kUts18);
// The lower case of one code point, without context: the point itself if it has no lower case. `second` is 0 except for
// U+0130.
struct Lower {
  uint32_t first = 0, second = 0;
};
Lower to_lower(uint32_t point);
// True for the marks that the StripAccents normaliser removes. Note [Older tables] applies to this function and to all
// functions below.
bool is_stripped(uint32_t point);

// ---- BERT's steps
// True if clean_text removes the point, unless it is white space of ASCII.
bool is_bert_control(uint32_t point);
// True if strip_accents removes the point.
bool is_bert_accent(uint32_t point);
// True if the point is a word of its own.
bool is_bert_punctuation(uint32_t point);
// True if handle_chinese_chars puts a space on both sides of the point: CJK ideographs in the blocks that BERT's
// authors listed.
bool is_bert_chinese(uint32_t point);

// ---- Normal forms (UAX 15). See Note [Older tables].
uint8_t combining_class(uint32_t point);
// Returns the full canonical or compatibility decomposition; empty if the point has none. Does not cover Hangul
// syllables.
std::span<const uint32_t> decomposition(uint32_t point, bool compatibility);
// Returns the primary composite of two points, 0 if there is none. Covers Hangul syllables.
uint32_t compose(uint32_t first, uint32_t second);

// Returns the position of the code point before text[at]. REQUIRES: at > 0 and valid UTF-8.
inline size_t previous_point(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}
// Decodes one code point of valid UTF-8 and advances `at`.
inline uint32_t next_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return ++at, lead;
  uint32_t point = 0;
  if (lead < 0xE0) {
    point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    at += 2;
  } else if (lead < 0xF0) {
    point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    at += 3;
  } else {
    point = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    at += 4;
  }
  return point;
}

}  // namespace rondo::text
