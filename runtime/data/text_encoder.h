// TextEncoder: encodes text of data files in pieces, such that no token crosses a border between pieces.
//
// Note [Borders]. A loss mask must not cut through a token, and a prompt must have the same ids in training and in
// generation, where nothing follows it. So the ids of a text never depend on the text after it. The text `before` is
// encoded alone. Then both texts are encoded together, and `text` gets the ids after those of `before`. If the joint
// encoding does not begin with the ids of `before`, because a token would cross the border, `text` is encoded alone,
// too. TRL also encodes prompt and completion together. If a token crosses the border, it only warns, and its mask is
// off by some tokens.
//
// Thread safety: immutable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/text/tokenizer.h"

namespace rondo::data {

using Ids = std::vector<int32_t>;

struct PieceOptions {
  bool at_start = true;   // the text is the beginning of an input
  Ids split_tokens = {};  // added tokens that are encoded as ordinary text
};

class TextEncoder {
 public:
  // Keeps a reference to the tokenizer. `allow_special`: the text of a special token becomes that token. This applies
  // to a PreTrainedTokenizer only.
  TextEncoder(const io::Tokenizer& tokenizer, bool allow_special);

  const io::Tokenizer& tokenizer() const { return tokenizer_; }
  // Returns the tokenizer if it is a PreTrainedTokenizer, else null.
  const text::PreTrainedTokenizer* pretrained() const { return pretrained_; }

  // Encodes without the tokenizer's own template, truncation and padding.
  Ids encode(std::string_view text, const PieceOptions& options = {}) const;
  // Returns the ids of `text` after `before`. `before_ids`: the ids of `before` alone, by the same options.
  // See Note [Borders].
  Ids continuation(std::string_view before, const Ids& before_ids, std::string_view text,
                   const PieceOptions& options = {}) const;

  // Returns the ids that the tokenizer's template puts before a text: {bos} for Llama, nothing for GPT-2.
  const Ids& opening() const { return opening_; }
  // Returns the id of the eos_token; -1 if the tokenizer names none.
  int32_t end_of_text() const { return pretrained_ != nullptr ? pretrained_->eos_token_id() : -1; }
  // Returns the id as the vocabulary spells it, for messages.
  std::string spelling(int32_t id) const;

 private:
  const io::Tokenizer& tokenizer_;
  const text::PreTrainedTokenizer* pretrained_;
  bool allow_special_;
  Ids opening_;
};

// Returns options for encoding without truncation and padding.
text::EncodeOptions plain_encoding(bool add_special_tokens, bool split_special_tokens);

}  // namespace rondo::data
