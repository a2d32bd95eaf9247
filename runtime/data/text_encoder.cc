#include "rondo/runtime/data/text_encoder.h"

#include <algorithm>

#include "rondo/runtime/io/json.h"

namespace rondo::data {

text::EncodeOptions plain_encoding(bool add_special_tokens, bool split_special_tokens) {
  return {.add_special_tokens = add_special_tokens,
          .split_special_tokens = split_special_tokens,
          .truncation = text::Truncation{.strategy = text::Truncation::kDoNotTruncate},
          .padding = text::Padding{.strategy = text::Padding::kDoNotPad}};
}

TextEncoder::TextEncoder(const io::Tokenizer& tokenizer, bool allow_special)
    : tokenizer_(tokenizer),
      pretrained_(dynamic_cast<const text::PreTrainedTokenizer*>(&tokenizer)),
      allow_special_(allow_special) {
  if (pretrained_ == nullptr) return;
  opening_ = pretrained_->opening_ids();
}

Ids TextEncoder::encode(std::string_view text, const PieceOptions& how) const {
  if (pretrained_ == nullptr) return tokenizer_.encode(text);
  text::EncodeOptions options = plain_encoding(false, !allow_special_);
  options.split_tokens = how.split_tokens;
  options.at_start = how.at_start;
  return pretrained_->encode(text, options);
}

Ids TextEncoder::continuation(std::string_view before, const Ids& before_ids, std::string_view text,
                              const PieceOptions& options) const {
  if (before.empty()) return encode(text, options);
  const Ids both = encode(std::string(before) + std::string(text), options);
  if (both.size() >= before_ids.size() && std::equal(before_ids.begin(), before_ids.end(), both.begin()))
    return Ids(both.begin() + static_cast<std::ptrdiff_t>(before_ids.size()), both.end());
  return encode(text, {.at_start = false, .split_tokens = options.split_tokens});
}

std::string TextEncoder::spelling(int32_t id) const {
  if (pretrained_ != nullptr) return io::shown(pretrained_->id_to_token(id));
  return io::shown(tokenizer_.decode({&id, 1}));
}

}  // namespace rondo::data
