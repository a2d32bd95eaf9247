// Added tokens: tokens that the tokenizer searches for in the text before it cuts the text into words.
//
// Thread safety: immutable once the tokenizer is built.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

namespace rondo::text {

struct AddedToken {
  int32_t id = 0;
  std::string content{};
  bool single_word = false;             // does not match inside a word
  bool lstrip = false, rstrip = false;  // also takes the white space to its left or right
  bool normalized = false;              // is searched for in normalised text, after normalising its content
  bool special = false;
  std::string decoded{};  // the text for decode(): the content, normalised if `normalized`, as in the reference
};

// Finds added tokens in a text: the leftmost match, and the longest at one position.
class AddedTokenFinder {
 public:
  // `pattern` is the text to search for: the content, normalised if token->normalized. `token` must outlive the finder.
  void add(const AddedToken* token, std::string pattern);
  // Call once after the last add().
  void finish();
  bool empty() const { return patterns_.empty(); }
  // Calls part(begin, end, token or null) for all parts of `text`, in order. A token for which is_text() returns true
  // is ordinary text.
  void split(std::string_view text, absl::FunctionRef<bool(const AddedToken&)> is_text,
             absl::FunctionRef<void(size_t, size_t, const AddedToken*)> part) const;

 private:
  struct Pattern {
    std::string text;
    const AddedToken* token;
  };
  std::vector<Pattern> patterns_;                           // sorted by first byte, then by decreasing length
  std::array<std::pair<uint32_t, uint32_t>, 256> first_{};  // by first byte: the range of its patterns
};

}  // namespace rondo::text
