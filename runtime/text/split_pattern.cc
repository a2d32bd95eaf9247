#include "rondo/runtime/text/split_pattern.h"

#include <optional>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

bool PointSet::has_beyond_ascii(uint32_t point) const {
  bool found = (categories != 0 && is(point, categories)) || (spaces && is_white_space(point)) ||
               (not_spaces && !is_white_space(point)) || (words && is_word(point, WordRule::kOniguruma)) ||
               (not_words && !is_word(point, WordRule::kOniguruma));
  for (size_t i = 0; !found && i < ranges.size(); ++i) found = point >= ranges[i].first && point <= ranges[i].second;
  return found != negated;
}
SplitPattern SplitPattern::literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if ((c & 0x80) == 0 && std::string_view(R"(\^$.|?*+()[]{})").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return SplitPattern(escaped);
}

size_t SplitPattern::match(std::string_view text, size_t at) const {
  uint64_t left = at < text.size() ? candidates_[static_cast<uint8_t>(text[at])] : ~uint64_t{0};
  int64_t budget = 100'000 + 64 * static_cast<int64_t>(text.size() - at);
  for (size_t i = 0; i < alternatives_.size(); ++i)
    if ((left >> i & 1) != 0)
      if (const size_t end = run(alternatives_[i], text, at, budget); end != npos) return end;
  return npos;
}

// Matches as many code points of the set as possible and returns the end; npos if there are too few. `least`: the
// earliest end to which backtracking may go back.
size_t SplitPattern::run_loop(const Step& step, std::string_view text, size_t at, size_t& least) const {
  const PointSet& set = sets_[step.set];
  uint32_t taken = 0;
  least = step.min == 0 ? at : npos;
  while (taken < step.max && at < text.size()) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 128) {
      if (!set.ascii[byte]) break;
      ++at;
    } else {
      size_t next = at;
      if (!set.has_beyond_ascii(next_point(text, next))) break;
      at = next;
    }
    if (++taken == step.min) least = at;
  }
  return taken < step.min ? npos : at;
}

size_t SplitPattern::run(uint32_t step, std::string_view text, size_t at, int64_t& budget) const {
  // Most patterns need only a few choices, so these are stored inline.
  constexpr size_t kInline = 16;
  Choice inline_choices[kInline];
  std::vector<Choice> more_choices;
  size_t choices = 0;
  const auto push = [&](Choice choice) {
    if (choices < kInline) inline_choices[choices] = choice;
    else more_choices.push_back(choice);
    ++choices;
  };
  for (;;) {
    const Step& now = steps_[step];
    bool fits = true;
    switch (now.code) {
      case Code::kMatch: return at;
      case Code::kSet: {
        fits = at < text.size();
        if (!fits) break;
        size_t next = at;
        fits = sets_[now.set].has(next_point(text, next));
        if (fits) at = next, ++step;
        break;
      }
      case Code::kLoop: {
        size_t least = npos;
        const size_t end = run_loop(now, text, at, least);
        fits = end != npos;
        if (!fits) break;
        budget -= static_cast<int64_t>((end - at) / 16);
        ++step;
        if (!now.possessive && end > least) push({step, end, least});
        at = end;
        break;
      }
      case Code::kSplit:
        push({now.to, at, at});
        ++step;
        break;
      case Code::kJump: step = now.to; break;
      case Code::kLook:
        fits = (run(step + 1, text, at, budget) != npos) != now.negative;
        step = now.to;
        break;
    }
    if (--budget < 0) throw Error("a split pattern of the tokenizer takes too many steps on this text");
    if (fits) continue;
    if (choices == 0) return npos;
    Choice& last = choices <= kInline ? inline_choices[choices - 1] : more_choices.back();
    step = last.step;
    if (last.at > last.least) at = last.at = previous_point(text, last.at);
    else at = last.at;
    if (last.at == last.least) {
      if (choices > kInline) more_choices.pop_back();
      --choices;
    }
  }
}

SplitPattern read_pattern(io::JsonReader& json, const std::string& where) {
  std::optional<SplitPattern> pattern;
  read_fields(json, where, [&](const std::string& key) {
    if ((key != "String" && key != "Regex") || pattern) return false;
    const std::string text = json.string();
    try {
      pattern = key == "String" ? SplitPattern::literal(text) : SplitPattern(text);
    } catch (const Error& error) {
      json.fail(absl::StrCat(where, ": ", error.what()));
    }
    return true;
  });
  if (!pattern) json.fail(absl::StrCat(where, ": the pattern is neither a String nor a Regex"));
  if (pattern->matches_empty()) json.fail(absl::StrCat(where, ": the pattern can match nothing"));
  return std::move(*pattern);
}

Replacement read_replacement(io::JsonReader& json, const std::string& where) {
  std::optional<SplitPattern> pattern;
  std::string content;
  read_fields(json, where, [&](const std::string& key) {
    if (key == "type") json.skip();
    else if (key == "pattern") pattern = read_pattern(json, where);
    else if (key == "content") content = json.string();
    else return false;
    return true;
  });
  if (!pattern) json.fail(where + ": has no pattern");
  return {std::move(*pattern), std::move(content)};
}

}  // namespace rondo::text
