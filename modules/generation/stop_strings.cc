#include "rondo/modules/generation/stop_strings.h"

#include <algorithm>

#include "rondo/runtime/io/utf8.h"

namespace rondo::nn {
namespace {

// Decoders write this for bytes that are no character, or not yet one.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

StopStrings::StopStrings(const Decode& decode, std::vector<std::string> stops)
    : decode_(decode), stops_(std::move(stops)) {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    longest = std::max(longest, stop.size());
    // With byte fallback, one bad byte turns a whole run of bytes into U+FFFD, however far back the run began. So a
    // stop string that contains U+FFFD may appear in text before the beginning of a shortened stretch. Other stop
    // strings cannot appear that far back: the characters that the run had before were searched already.
    may_shorten_ = may_shorten_ && io::is_valid_utf8(stop) && stop.find(kReplacement) == stop.npos;
  }
  kept_ = longest + kMayChange;
  shorten_at_ = 2 * kept_;
}

size_t StopStrings::find_stop(std::string_view text) const {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops_) first = std::min(first, text.find(stop));
  return first;
}

std::optional<std::string> StopStrings::text_before_stop(std::span<const int64_t> tokens) {
  std::string text = decode_(tokens.subspan(begin_));
  size_t cut = find_stop(text);
  if (cut != text.npos) {
    if (begin_ > 0) {
      text = decode_(tokens);
      cut = find_stop(text);
    }
    if (cut == text.npos) return std::nullopt;
    text.resize(cut);
    return text;
  }
  if (may_shorten_ && text.size() >= shorten_at_) shorten(tokens, text);
  return std::nullopt;
}

void StopStrings::shorten(std::span<const int64_t> tokens, std::string_view stretch) {
  if (stretch.ends_with(kReplacement)) return;  // a character may be incomplete: wait for the rest
  // Tries to begin near the middle, then near the first quarter. The first token must not be inside a character, which
  // has at most four bytes, or inside a word.
  const size_t length = tokens.size() - begin_;
  for (const size_t middle : {length / 2, length / 4})
    for (size_t back = 0; back < 4 && back < middle; ++back) {
      const size_t begin = begin_ + middle - back;
      const std::string shorter = decode_(tokens.subspan(begin));
      if (shorter.size() < kept_ || !stretch.ends_with(shorter)) continue;
      begin_ = begin;
      shorten_at_ = shorter.size() + kept_;
      return;
    }
  shorten_at_ = 2 * stretch.size();
}

}  // namespace rondo::nn
