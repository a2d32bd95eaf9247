// Added tokens: they are found in the text before it is cut into words.
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
  bool single_word = false;             // not inside a word
  bool lstrip = false, rstrip = false;  // takes the white space beside it
  bool normalized = false;              // looked for in normalised text
  bool special = false;
  std::string decoded{};  // what decode() writes: the content, normalised if the token is, as in the reference
};

// Finds the added tokens of one kind: leftmost, then longest.
class AddedTokenFinder {
 public:
  // `pattern` is the content, normalised if the token is. `token` outlives the finder.
  void add(const AddedToken* token, std::string pattern);
  // Call once after the last add().
  void finish();
  bool empty() const { return patterns_.empty(); }
  // Calls part(begin, end, token or null) for all of `text`, in order. A token of which `is_text` is true is ordinary
  // text.
  void split(std::string_view text, absl::FunctionRef<bool(const AddedToken&)> is_text,
             absl::FunctionRef<void(size_t, size_t, const AddedToken*)> part) const;

 private:
  struct Pattern {
    std::string text;
    const AddedToken* token;
  };
  std::vector<Pattern> patterns_;                           // by first byte, then by falling length
  std::array<std::pair<uint32_t, uint32_t>, 256> first_{};  // the range of patterns of a first byte
};

}  // namespace rondo::text
