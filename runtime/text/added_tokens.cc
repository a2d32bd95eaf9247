#include "rondo/runtime/text/added_tokens.h"

#include <algorithm>

#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

void AddedTokenFinder::add(const AddedToken* token, std::string pattern) {
  if (!pattern.empty()) patterns_.push_back({std::move(pattern), token});
}

void AddedTokenFinder::finish() {
  const auto byte = [](const Pattern& pattern) { return static_cast<uint8_t>(pattern.text[0]); };
  std::stable_sort(patterns_.begin(), patterns_.end(), [&](const Pattern& a, const Pattern& b) {
    return byte(a) != byte(b) ? byte(a) < byte(b) : a.text.size() > b.text.size();
  });
  for (size_t i = 0; i < patterns_.size(); ++i) {
    auto& range = first_[byte(patterns_[i])];
    if (range.second == 0) range.first = static_cast<uint32_t>(i);
    range.second = static_cast<uint32_t>(i + 1);
  }
}

void AddedTokenFinder::split(std::string_view text, absl::FunctionRef<bool(const AddedToken&)> is_text,
                             absl::FunctionRef<void(size_t, size_t, const AddedToken*)> part) const {
  size_t done = 0;  // part() was called for all text before this position
  for (size_t at = 0; at < text.size() && !patterns_.empty();) {
    const auto [first, last] = first_[static_cast<uint8_t>(text[at])];
    const Pattern* found = nullptr;
    for (uint32_t i = first; i < last && found == nullptr; ++i)
      if (text.substr(at).starts_with(patterns_[i].text)) found = &patterns_[i];
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->text.size();
    at = end;
    const AddedToken& token = *found->token;
    if (is_text(token)) continue;
    if (token.single_word) {
      size_t next = end;
      const bool word_before = begin > 0 && [&] {
        size_t before = previous_point(text, begin);
        return is_word(next_point(text, before));
      }();
      if (word_before || (end < text.size() && is_word(next_point(text, next)))) continue;
    }
    if (token.lstrip)
      while (begin > done) {
        const size_t before = previous_point(text, begin);
        size_t next = before;
        if (!is_white_space(next_point(text, next))) break;
        begin = std::max(before, done);
      }
    if (token.rstrip)
      for (size_t next = end; end < text.size() && is_white_space(next_point(text, next));) end = next;
    if (done < begin) part(done, begin, nullptr);
    part(begin, end, &token);
    done = end;
  }
  if (done < text.size()) part(done, text.size(), nullptr);
}

}  // namespace rondo::text
