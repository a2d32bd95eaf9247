#include "rondo/runtime/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/tokenizer_json.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

namespace {

// Returns `n` encodings. texts_of(i) returns the text, or the two texts, of encoding i.
template <class TextsOf>
std::vector<Encoding> encode_each(const TokenizerParts& parts, size_t n, const EncodeOptions& options,
                                  TextsOf texts_of) {
  return within_memory("encode", [&] {
    std::vector<Encoding> out(n);
    parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
      TokenizerParts::Lease scratch(parts);
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const auto texts = texts_of(i);
        out[i] = parts.encode_texts(texts, options, *scratch);
      }
    });
    if (const auto& how = options.padding ? options.padding : parts.padding) pad(out, *how);
    return out;
  });
}

}  // namespace

PreTrainedTokenizer::PreTrainedTokenizer(std::unique_ptr<TokenizerParts> parts) : parts_(std::move(parts)) {}
PreTrainedTokenizer::PreTrainedTokenizer(PreTrainedTokenizer&&) noexcept = default;
PreTrainedTokenizer& PreTrainedTokenizer::operator=(PreTrainedTokenizer&&) noexcept = default;
PreTrainedTokenizer::~PreTrainedTokenizer() = default;

const TokenizerParts& PreTrainedTokenizer::parts() const {
  if (parts_ == nullptr) throw Error("PreTrainedTokenizer: the tokenizer was moved to another object");
  return *parts_;
}

PreTrainedTokenizer PreTrainedTokenizer::from_json(std::string_view json, const std::string& path) {
  return within_memory(path, [&] { return PreTrainedTokenizer(read_tokenizer_json(json, path)); });
}
PreTrainedTokenizer PreTrainedTokenizer::from_file(const std::string& path) try {
  return from_json(io::read_text(path, kLargestFile), path);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("PreTrainedTokenizer::from_file");
}

std::vector<int32_t> PreTrainedTokenizer::encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

std::vector<int32_t> PreTrainedTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const auto& truncation = options.truncation ? options.truncation : parts().truncation;
  const auto& padding = options.padding ? options.padding : parts().padding;
  if ((truncation && truncation->strategy != Truncation::kDoNotTruncate) ||
      (padding && padding->strategy != Padding::kDoNotPad))
    return std::move((*this)(text, options).ids);
  return within_memory("encode", [&]() -> std::vector<int32_t> {
    TokenizerParts::Lease scratch(parts());
    std::vector<Encoding> texts(1);
    std::vector<Spaces> no_spaces;
    parts().encode(text, options, true, *scratch, texts[0], no_spaces);
    if (!options.add_special_tokens || parts().post_processor.added_tokens(false) == 0) return std::move(texts[0].ids);
    return std::move(parts().post_processor.join(std::move(texts), true).ids);
  });
}

Encoding PreTrainedTokenizer::operator()(std::string_view text, const EncodeOptions& options) const {
  return std::move(encode_batch({&text, 1}, options)[0]);
}

Encoding PreTrainedTokenizer::operator()(std::string_view text, std::string_view pair,
                                         const EncodeOptions& options) const {
  const TextPair texts{text, pair};
  return std::move(encode_batch({&texts, 1}, options)[0]);
}

std::vector<Encoding> PreTrainedTokenizer::encode_batch(std::span<const std::string_view> texts,
                                                        const EncodeOptions& options) const {
  return encode_each(parts(), texts.size(), options, [&](size_t i) { return texts.subspan(i, 1); });
}

std::vector<Encoding> PreTrainedTokenizer::encode_batch(std::span<const TextPair> pairs,
                                                        const EncodeOptions& options) const {
  return encode_each(parts(), pairs.size(), options, [&](size_t i) {
    return std::array{pairs[i].first, pairs[i].second};
  });
}

std::string PreTrainedTokenizer::decode(std::span<const int32_t> ids) const { return decode(ids, {}); }

std::string PreTrainedTokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  return within_memory("decode", [&] {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0) throw Error(absl::StrCat("decode: ids are not negative, got ", id));
      const std::string* token = parts().spelling(id);
      if (token == nullptr) continue;
      const AddedToken* added = parts().added_token(id);
      if (added == nullptr) tokens.push_back(*token);
      else if (!added->special || !options.skip_special_tokens) tokens.push_back(added->decoded);
    }
    std::string text = parts().decoders.join(std::move(tokens));
    if (parts().cleans_up) clean_up(text);
    return options.replace_invalid ? replace_invalid_utf8(std::move(text)) : text;
  });
}

std::string PreTrainedTokenizer::decode(std::span<const int64_t> ids, const DecodeOptions& options) const try {
  std::vector<int32_t> narrow;
  narrow.reserve(ids.size());
  for (const int64_t id : ids) {
    if (id > std::numeric_limits<int32_t>::max()) continue;
    narrow.push_back(static_cast<int32_t>(std::max<int64_t>(id, -1)));
  }
  return decode(narrow, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("decode");
}

int64_t PreTrainedTokenizer::vocab_size() const { return parts().size(); }
int32_t PreTrainedTokenizer::token_to_id(std::string_view token) const { return parts().id(token); }
std::string PreTrainedTokenizer::id_to_token(int32_t id) const try {
  const std::string* token = parts().spelling(id);
  if (token == nullptr)
    throw Error(absl::StrCat("id_to_token: id ", id, " names no token of the vocabulary of ", vocab_size()));
  return *token;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("id_to_token");
}
bool PreTrainedTokenizer::is_added(int32_t id) const { return parts().added_token(id) != nullptr; }
std::vector<int32_t> PreTrainedTokenizer::opening_ids() const try {
  std::vector<int32_t> ids;
  if (!parts().post_processor.single) return ids;
  for (const TemplatePiece& piece : *parts().post_processor.single) {
    if (piece.sequence >= 0) break;
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
  }
  return ids;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("opening_ids");
}
bool PreTrainedTokenizer::is_special(int32_t id) const {
  const AddedToken* added = parts().added_token(id);
  return added != nullptr && added->special;
}
int32_t PreTrainedTokenizer::bos_token_id() const { return parts().id(parts().names.bos); }
int32_t PreTrainedTokenizer::eos_token_id() const { return parts().id(parts().names.eos); }
int32_t PreTrainedTokenizer::unk_token_id() const { return parts().id(parts().names.unk); }
int32_t PreTrainedTokenizer::pad_token_id() const { return parts().id(parts().names.pad); }
std::optional<int64_t> PreTrainedTokenizer::model_max_length() const { return parts().model_max_length; }
bool PreTrainedTokenizer::has_chat_template() const { return !parts().chat_templates.empty(); }

}  // namespace rondo::text
