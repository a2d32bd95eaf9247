// Unicode 14 as the tokenizers need it: general categories, lower case, normal forms. Tables of our own, so that ids do
// not change with the libraries of a machine (unicode_*.inc, made by tests/reference/record_unicode.py).
//
// Note [Older tables]: the reference normalises by Unicode 9 and does BERT's steps by Unicode 8. So do we: points that
// came later have no decomposition, no combining class and the category that they had.
//
// Thread safety: everything here is immutable; the tables are unpacked with the first use.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "rondo/runtime/io/utf8.h"

namespace rondo::text {

// In the order of unicode_data.inc.
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
// One bit per category, so that a set of categories is one number.
constexpr uint32_t bit(Category category) { return uint32_t{1} << category; }
inline constexpr uint32_t kLetter = bit(kLu) | bit(kLl) | bit(kLt) | bit(kLm) | bit(kLo);
inline constexpr uint32_t kMark = bit(kMn) | bit(kMc) | bit(kMe);
inline constexpr uint32_t kNumber = bit(kNd) | bit(kNl) | bit(kNo);
inline constexpr uint32_t kPunctuation = bit(kPc) | bit(kPd) | bit(kPs) | bit(kPe) | bit(kPi) | bit(kPf) | bit(kPo);
inline constexpr uint32_t kSymbol = bit(kSm) | bit(kSc) | bit(kSk) | bit(kSo);
inline constexpr uint32_t kSeparator = bit(kZs) | bit(kZl) | bit(kZp);
inline constexpr uint32_t kOther = bit(kCn) | bit(kCc) | bit(kCf) | bit(kCs) | bit(kCo);

// REQUIRES: point <= 0x10FFFF, here and below.
Category category(uint32_t point);
inline bool is(uint32_t point, uint32_t categories) { return (bit(category(point)) & categories) != 0; }
// Unicode's White_Space.
bool is_white_space(uint32_t point);
// The meaning of \w: alphabetic, marks, decimal digits, connectors. The reference has two engines. The one that follows
// UTS 18 adds U+200C and U+200D; patterns are matched by the other.
enum class WordRule { kUts18, kOniguruma };
bool is_word(uint32_t point, WordRule rule = WordRule::kUts18);
// The lower case of one code point, context apart: itself if it has none. `second` is 0 but for U+0130.
struct Lower {
  uint32_t first = 0, second = 0;
};
Lower to_lower(uint32_t point);
// True for the marks that the StripAccents normaliser removes. See Note [Older tables], here and below.
bool is_stripped(uint32_t point);

// ---- BERT's steps
// Removed by clean_text, unless it is white space of ASCII.
bool is_bert_control(uint32_t point);
// Removed by strip_accents.
bool is_bert_accent(uint32_t point);
// A word of its own.
bool is_bert_punctuation(uint32_t point);
// Gets a space on both sides: CJK ideographs in the blocks that BERT's authors listed.
bool is_bert_chinese(uint32_t point);

// ---- Normal forms (UAX 15). See Note [Older tables].
uint8_t combining_class(uint32_t point);
// The whole canonical, or compatibility, decomposition; empty if the point is its own. Hangul syllables are not in it.
std::span<const uint32_t> decomposition(uint32_t point, bool compatibility);
// The primary composite of two points, 0 if there is none. With Hangul.
uint32_t compose(uint32_t first, uint32_t second);

// The code point before text[at]. REQUIRES: at > 0 and valid UTF-8.
inline size_t previous_point(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}
// Decodes UTF-8 that is known to be valid: advances `at`.
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
