// Text of data files to ids, in pieces whose borders are exact.
//
// Note [Borders]. A loss mask must not cut through a token, and a prompt must have the same ids in training and in
// generation, where nothing follows it. So the ids of a text never depend on what comes behind it: `before` is encoded
// alone, and `text` gets the ids that follow in the encoding of both together. Where that encoding does not begin with
// the ids of `before` (a token would cross the border), `text` is encoded alone, too. The first case is what TRL does
// for prompt and completion; in the second, TRL warns and its mask is off by some tokens.
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
  bool at_start = true;   // nothing stands before the text
  Ids split_tokens = {};  // added tokens whose text is ordinary
};

class TextEncoder {
 public:
  // Keeps a reference. `allow_special`: a special token's text becomes the token. Other tokenizers than
  // PreTrainedTokenizer know no special tokens here.
  TextEncoder(const io::Tokenizer& tokenizer, bool allow_special);

  const io::Tokenizer& tokenizer() const { return tokenizer_; }
  // Null if it is another class.
  const text::PreTrainedTokenizer* pretrained() const { return pretrained_; }

  // Without the tokenizer's own template, truncation and padding.
  Ids encode(std::string_view text, const PieceOptions& options = {}) const;
  // Ids of `text` behind `before`, whose own ids are `before_ids`, by these options. See Note [Borders].
  Ids continuation(std::string_view before, const Ids& before_ids, std::string_view text,
                   const PieceOptions& options = {}) const;

  // The ids that the tokenizer's template puts before a text: {bos} for Llama, nothing for GPT-2.
  const Ids& opening() const { return opening_; }
  // -1 if the tokenizer names none.
  int32_t end_of_text() const { return pretrained_ != nullptr ? pretrained_->eos_token_id() : -1; }
  // The id as the vocabulary spells it, for messages.
  std::string spelling(int32_t id) const;

 private:
  const io::Tokenizer& tokenizer_;
  const text::PreTrainedTokenizer* pretrained_;
  bool allow_special_;
  Ids opening_;
};

// Encodes text without truncation and padding.
text::EncodeOptions plain_encoding(bool add_special_tokens, bool split_special_tokens);

}  // namespace rondo::data
