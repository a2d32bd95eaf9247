// Finds the first stop string in the text of tokens that come one by one, without decoding all of them each time.
//
//   StopStrings stops(decode, {"\nUser:"});
//   tokens.push_back(next);
//   if (std::optional<std::string> text = stops.text_before_stop(tokens)) ...  // the text up to the stop string
//
// The answer is the same as for decode(all tokens), but each new token decodes only a stretch of tokens at the end. The
// stretch loses its first half when the rest has more text than the longest stop string and kMayChange bytes.
//
// Invariant: the text of the stretch is the end of the whole text. This is checked when the stretch is shortened,
// because decoders may treat the first token of a text in a special way. If no shorter stretch fits, the stretch grows.
// So three kinds of text may cost as much as decoding all tokens: characters that stay incomplete, tokens without any
// text, and stop strings with U+FFFD.
//
// Thread safety: one thread at a time. `decode` must outlive this object.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::nn {

class StopStrings {
 public:
  using Decode = std::function<std::string(std::span<const int64_t>)>;
  // How far before its end a decoder may still change a text that does not end in U+FFFD: " ' t" becomes "'t".
  static constexpr size_t kMayChange = 64;

  // REQUIRES: no stop string is empty.
  StopStrings(const Decode& decode, std::vector<std::string> stops);
  // Returns the text before the first stop string, if there is one in the text of `tokens`: those of the last call and
  // one more.
  std::optional<std::string> text_before_stop(std::span<const int64_t> tokens);

 private:
  size_t find_stop(std::string_view text) const;
  void shorten(std::span<const int64_t> tokens, std::string_view stretch);

  const Decode& decode_;
  std::vector<std::string> stops_;
  bool may_shorten_ = true;
  size_t begin_ = 0;       // the first token of the stretch
  size_t kept_ = 0;        // the least bytes of text in a stretch that does not hold all tokens
  size_t shorten_at_ = 0;  // bytes of text at which shorten() is tried
};

}  // namespace rondo::nn
