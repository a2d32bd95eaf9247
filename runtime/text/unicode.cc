#include "rondo/runtime/text/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "rondo/runtime/base/hash_map.h"

namespace rondo::text {
namespace {

struct Run {
  uint32_t first;  // the run ends before the first point of the next run
  uint8_t value;
};
// Every `stride`-th point of first..last has the lower case point + delta.
struct LowerRun {
  uint32_t first, last, stride;
  int32_t delta;
};
struct Composite {
  uint32_t first, second, composed;
};

constexpr Run kCategoryRuns[] = {
#define RONDO_CATEGORIES
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_CATEGORIES
};
constexpr Run kCombiningRuns[] = {
#define RONDO_COMBINING_CLASSES
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_COMBINING_CLASSES
};
constexpr LowerRun kLowerRuns[] = {
#define RONDO_LOWER
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_LOWER
};
constexpr Composite kComposites[] = {
#define RONDO_COMPOSITES
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_COMPOSITES
};
// Ranges of points for which the reference's older tables differ from Unicode 14.
struct Range {
  uint32_t first, last;
};
constexpr Range kStrippedDiffers[] = {
#define RONDO_STRIPPED_DIFFERS
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_STRIPPED_DIFFERS
};
constexpr Range kBertControlDiffers[] = {
#define RONDO_BERT_CONTROL_DIFFERS
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_BERT_CONTROL_DIFFERS
};
constexpr Range kBertAccentDiffers[] = {
#define RONDO_BERT_ACCENT_DIFFERS
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_BERT_ACCENT_DIFFERS
};
constexpr Range kBertPunctuationDiffers[] = {
#define RONDO_BERT_PUNCTUATION_DIFFERS
#include "rondo/runtime/text/unicode_data.inc"
#undef RONDO_BERT_PUNCTUATION_DIFFERS
};
// Each entry is a code point, the number of points of its decomposition, and these points.
constexpr uint32_t kCanonical[] = {
#define RONDO_CANONICAL
#include "rondo/runtime/text/unicode_decompositions.inc"
#undef RONDO_CANONICAL
};
constexpr uint32_t kCompatibility[] = {
#define RONDO_COMPATIBILITY
#include "rondo/runtime/text/unicode_decompositions.inc"
#undef RONDO_COMPATIBILITY
};

constexpr uint32_t kPoints = 0x110000, kBlock = 256;

// A table with one value per code point. Equal blocks of 256 values are stored once.
class PointTable {
 public:
  explicit PointTable(std::span<const Run> runs) {
    std::array<uint8_t, kBlock> block{};
    size_t run = 0;
    for (uint32_t start = 0; start < kPoints; start += kBlock) {
      for (uint32_t i = 0; i < kBlock; ++i) {
        while (run + 1 < runs.size() && runs[run + 1].first <= start + i) ++run;
        block[i] = runs[run].value;
      }
      size_t at = 0;
      while (at < values_.size() && std::memcmp(&values_[at], block.data(), kBlock) != 0) at += kBlock;
      if (at == values_.size()) values_.insert(values_.end(), block.begin(), block.end());
      blocks_[start / kBlock] = static_cast<uint16_t>(at / kBlock);
    }
  }
  uint8_t operator[](uint32_t point) const { return values_[blocks_[point / kBlock] * kBlock + point % kBlock]; }

 private:
  std::array<uint16_t, kPoints / kBlock> blocks_{};
  std::vector<uint8_t> values_;
};

using Decompositions = HashMap<uint32_t, std::span<const uint32_t>>;
Decompositions unpack(std::span<const uint32_t> packed) {
  Decompositions table;
  for (size_t at = 0; at < packed.size(); at += 2 + packed[at + 1])
    table.try_emplace(packed[at], packed.subspan(at + 2, packed[at + 1]));
  return table;
}

bool contains(std::span<const Range> ranges, uint32_t point) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), point,
                                      [](uint32_t value, const Range& range) { return value < range.first; });
  return after != ranges.begin() && point <= after[-1].last;
}

// Constants of the Hangul syllable algorithm (The Unicode Standard, section 3.12).
constexpr uint32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00, kLCount = 19, kVCount = 21, kTCount = 28;

}  // namespace

Category category(uint32_t point) {
  static const PointTable& table = *new PointTable(kCategoryRuns);
  return static_cast<Category>(table[point]);
}

bool is_white_space(uint32_t point) {
  if (point < 0x80) return point == ' ' || (point >= 9 && point <= 13);
  return point == 0x85 || point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
         point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
}

bool is_word(uint32_t point, WordRule rule) {
  if (is(point, kLetter | kMark | bit(kNd) | bit(kNl) | bit(kPc))) return true;
  // Letters in circles and squares have the category Symbol, but the property Alphabetic.
  if ((point >= 0x24B6 && point <= 0x24E9) || (point >= 0x1F130 && point <= 0x1F149) ||
      (point >= 0x1F150 && point <= 0x1F169) || (point >= 0x1F170 && point <= 0x1F189))
    return true;
  return rule == WordRule::kUts18 && (point == 0x200C || point == 0x200D);
}

Lower to_lower(uint32_t point) {
  if (point < 0x80) return {point >= 'A' && point <= 'Z' ? point + 32 : point};
  if (point == 0x130) return {'i', 0x307};
  const auto after = std::upper_bound(std::begin(kLowerRuns), std::end(kLowerRuns), point,
                                      [](uint32_t value, const LowerRun& run) { return value < run.first; });
  if (after == std::begin(kLowerRuns)) return {point};
  const LowerRun& run = after[-1];
  if (point > run.last || (point - run.first) % run.stride != 0) return {point};
  return {static_cast<uint32_t>(static_cast<int32_t>(point) + run.delta)};
}

bool is_stripped(uint32_t point) { return is(point, kMark) != contains(kStrippedDiffers, point); }

bool is_bert_control(uint32_t point) {
  return is(point, bit(kCc) | bit(kCf) | bit(kCo)) != contains(kBertControlDiffers, point);
}
bool is_bert_accent(uint32_t point) { return is(point, bit(kMn)) != contains(kBertAccentDiffers, point); }
bool is_bert_punctuation(uint32_t point) {
  if (point < 0x80) return point > ' ' && point < 0x7F && !is(point, kLetter | kNumber);
  return is(point, kPunctuation) != contains(kBertPunctuationDiffers, point);
}

bool is_bert_chinese(uint32_t point) {
  // The reference has 0x2B920 where Unicode has 0x2B820. Rondo copies the reference.
  return (point >= 0x4E00 && point <= 0x9FFF) || (point >= 0x3400 && point <= 0x4DBF) ||
         (point >= 0x20000 && point <= 0x2A6DF) || (point >= 0x2A700 && point <= 0x2B73F) ||
         (point >= 0x2B740 && point <= 0x2B81F) || (point >= 0x2B920 && point <= 0x2CEAF) ||
         (point >= 0xF900 && point <= 0xFAFF) || (point >= 0x2F800 && point <= 0x2FA1F);
}

uint8_t combining_class(uint32_t point) {
  static const PointTable& table = *new PointTable(kCombiningRuns);
  return point < 0x300 ? 0 : table[point];
}

std::span<const uint32_t> decomposition(uint32_t point, bool compatibility) {
  static const Decompositions& canonical = *new Decompositions(unpack(kCanonical));
  static const Decompositions& compatible = *new Decompositions(unpack(kCompatibility));
  if (compatibility)
    if (const auto found = compatible.find(point); found != compatible.end()) return found->second;
  const auto found = canonical.find(point);
  return found == canonical.end() ? std::span<const uint32_t>{} : found->second;
}

uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kL < kLCount && second - kV < kVCount) return kS + ((first - kL) * kVCount + (second - kV)) * kTCount;
  if (first - kS < kLCount * kVCount * kTCount && (first - kS) % kTCount == 0 && second - kT - 1 < kTCount - 1)
    return first + (second - kT);
  static const auto& table = *new auto([] {
    HashMap<uint64_t, uint32_t> pairs;
    for (const Composite& c : kComposites) pairs.try_emplace(uint64_t{c.first} << 32 | c.second, c.composed);
    return pairs;
  }());
  const auto found = table.find(uint64_t{first} << 32 | second);
  return found == table.end() ? 0 : found->second;
}

}  // namespace rondo::text
