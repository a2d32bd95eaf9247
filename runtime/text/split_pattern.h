// SplitPattern: the regular expressions with which tokenizer files split text into words. A small backtracking engine
// over code points.
//
//   const SplitPattern pattern(R"( ?\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+)");
//   pattern.match(text, at);  // the end of the match that starts at byte `at`, or npos
//
// Supported: alternation, groups (..) and (?:..), greedy * + ? {m,n}, possessive *+ ++ ?+ on one character, lookahead
// (?=..) (?!..), classes [..] with ranges and negation, . \s \S \d \D \w \W \p{..} \P{..} of general categories,
// escapes, (?i:..) over ASCII. Everything else (lazy quantifiers, lookbehind, anchors, back references, named groups)
// is an Error that names it and its position. Semantics: Oniguruma, which the reference uses, with Unicode 14.
//
// Thread safety: immutable.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/io/json.h"

namespace rondo::text {

// A set of code points.
struct PointSet {
  std::array<bool, 128> ascii{};
  // Code points above ASCII: the union of the fields below, negated if `negated`.
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  uint32_t categories = 0;
  bool spaces = false, words = false, not_spaces = false, not_words = false;
  bool negated = false;

  bool has(uint32_t point) const { return point < 128 ? ascii[point] : has_beyond_ascii(point); }
  bool has_beyond_ascii(uint32_t point) const;
};

class SplitPattern {
 public:
  static constexpr size_t npos = std::string_view::npos;

  // Throws Error if the pattern is malformed or not supported.
  explicit SplitPattern(std::string_view pattern);
  // Returns a pattern that matches exactly `text`.
  static SplitPattern literal(std::string_view text);

  // Returns the end of the match that starts at text[at]; npos if no match starts there. `text` is valid UTF-8, and
  // `at` is the start of a code point. Throws Error if the pattern backtracks for too many steps.
  size_t match(std::string_view text, size_t at) const;
  // True if the pattern can match an empty text. Such a pattern cannot split text.
  bool matches_empty() const { return matches_empty_; }

 private:
  friend class PatternParser;
  enum class Code : uint8_t { kSet, kLoop, kSplit, kJump, kLook, kMatch };
  struct Step {
    Code code;
    bool possessive = false;    // kLoop
    bool negative = false;      // kLook
    uint32_t set = 0;           // kSet, kLoop
    uint32_t min = 0, max = 0;  // kLoop
    uint32_t to = 0;            // kJump; kSplit: second choice; kLook: the step after its body, which ends in kMatch
  };
  struct Choice {
    uint32_t step;
    size_t at, least;  // a loop gives back one code point at a time until at == least
  };
  SplitPattern() = default;
  size_t run(uint32_t step, std::string_view text, size_t at, int64_t& budget) const;
  size_t run_loop(const Step& step, std::string_view text, size_t at, size_t& least) const;

  std::vector<PointSet> sets_;
  std::vector<Step> steps_;
  // The first steps of the pattern's alternatives, in order; and for each first byte, a bit mask of the alternatives
  // that can begin with it.
  std::vector<uint32_t> alternatives_;
  std::array<uint64_t, 256> candidates_{};
  bool matches_empty_ = false;
};

// Reads {"String": ".."} or {"Regex": ".."}. Throws FileError, also for a pattern that can match an empty text. `where`
// names the object in errors.
SplitPattern read_pattern(io::JsonReader& json, const std::string& where);

// {"type": "Replace", "pattern": .., "content": ".."} in a file.
struct Replacement {
  SplitPattern pattern;
  std::string content;
};
Replacement read_replacement(io::JsonReader& json, const std::string& where);

// Calls visit(begin, end, is_match) for each match and for each part between two matches, in order.
template <class Visit> void for_each_match(const SplitPattern& pattern, std::string_view text, Visit&& visit) {
  size_t unmatched = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = pattern.match(text, at);
    if (end == SplitPattern::npos) {
      do ++at;
      while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
      continue;
    }
    if (unmatched < at) visit(unmatched, at, false);
    visit(at, end, true);
    unmatched = at = end;
  }
  if (unmatched < text.size()) visit(unmatched, text.size(), false);
}

}  // namespace rondo::text
