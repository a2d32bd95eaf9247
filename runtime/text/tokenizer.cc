#include "rondo/runtime/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/tokenizer_impl.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

using Impl = PreTrainedTokenizer::Impl;

// ---- Added tokens and ids

bool Impl::add_token(AddedToken token) {
  int32_t id = model->vocabulary().id(token.content);
  if (id < 0) {
    // As the reference: behind the vocabulary, by its count of tokens, and behind the added tokens.
    int64_t next = model->vocabulary().count();
    for (const AddedToken& other : added_) next = std::max<int64_t>(next, other.id + int64_t{1});
    if (next > INT32_MAX) return false;
    id = static_cast<int32_t>(next);
  }
  if (token.id < 0) token.id = id;
  if (id != token.id || added_by_id_.contains(id) || added_by_content_.contains(token.content)) return false;
  const AddedToken& kept = added_.emplace_back(std::move(token));
  added_by_id_.try_emplace(id, &kept);
  added_by_content_.try_emplace(kept.content, &kept);
  return true;
}

void Impl::finish() {
  for (AddedToken& token : added_) {
    token.decoded = token.content;
    if (!token.normalized) {
      in_raw_.add(&token, token.content);
      continue;
    }
    for (const auto& normalizer : normalizers) {
      AlignedText next(false, longest_rewritten(token.content.size()));
      normalizer->rewrite({.text = token.decoded, .tracked = false}, next);
      token.decoded = std::string(next.piece().text);
    }
    in_normalized_.add(&token, token.decoded);
  }
  in_raw_.finish();
  in_normalized_.finish();
}

const AddedToken* Impl::added_token(int64_t id) const {
  if (id < 0 || id > INT32_MAX) return nullptr;
  const auto found = added_by_id_.find(static_cast<int32_t>(id));
  return found == added_by_id_.end() ? nullptr : found->second;
}

const std::string* Impl::spelling(int64_t id) const {
  const AddedToken* added = added_token(id);
  return added != nullptr ? &added->content : model->vocabulary().token(id);
}

int32_t Impl::id(std::string_view token) const {
  const auto found = added_by_content_.find(token);
  return found != added_by_content_.end() ? found->second->id : model->vocabulary().id(token);
}

int64_t Impl::size() const {
  int64_t size = model->vocabulary().size();
  for (const AddedToken& token : added_) size = std::max<int64_t>(size, token.id + int64_t{1});
  return size;
}

// ---- Encoding

Impl::Lease::Lease(const Impl& impl) : impl_(impl) {
  {
    std::lock_guard lock(impl.mutex_);
    if (!impl.idle_.empty()) {
      scratch_ = std::move(impl.idle_.back());
      impl.idle_.pop_back();
    }
  }
  if (scratch_ == nullptr) scratch_ = std::make_unique<Scratch>();
}

Impl::Lease::~Lease() {
  std::lock_guard lock(impl_.mutex_);
  try {
    impl_.idle_.push_back(std::move(scratch_));
  } catch (const std::bad_alloc&) {  // then it is freed
  }
}

namespace {

// Raw spaces, and those in GPT-2's spelling (U+0120).
Spaces spaces_of(std::string_view token) {
  const auto is_space = [](uint32_t point) { return point == 0x120 || is_white_space(point); };
  Spaces out;
  for (size_t at = 0; at < token.size() && is_space(next_point(token, at));) ++out.leading;
  for (size_t end = token.size(); end > 0; ++out.trailing) {
    end = previous_point(token, end);
    size_t at = end;
    if (!is_space(next_point(token, at))) break;
  }
  return out;
}

// Spaces at the ends of tokens leave the offsets, except the one that add_prefix_space put before the text: if there
// are several, it put none there.
void trim_offsets(std::vector<Encoding::Offset>& offsets, std::span<const Spaces> spaces, bool add_prefix_space) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    Encoding::Offset& offset = offsets[i];
    const bool was_put = (i == 0 || offset.begin == 0) && add_prefix_space && spaces[i].leading == 1;
    offset.begin = std::min(offset.begin + (was_put ? 0 : spaces[i].leading), offset.end);
    if (offset.end >= spaces[i].trailing) offset.end = std::max(offset.end - spaces[i].trailing, offset.begin);
  }
}

}  // namespace

void Impl::cut(size_t step, const Piece& piece, absl::FunctionRef<void(const Piece&)> word) const {
  if (step == pre_tokenizers.steps.size()) return word(piece);
  pre_tokenizers.steps[step]->cut(piece, [&](const Piece& part) { cut(step + 1, part, word); });
}

void Impl::walk(std::string_view text, const EncodeOptions& options, bool tracked,
                absl::FunctionRef<void(const Piece&)> word,
                absl::FunctionRef<void(const Piece&, const AddedToken&)> token) const {
  const Piece all{.text = text, .base = options.at_start ? 0u : 1u, .tracked = tracked};
  const auto is_text = [&](const AddedToken& token) {
    return (options.split_special_tokens && token.special) ||
           std::find(options.split_tokens.begin(), options.split_tokens.end(), token.id) != options.split_tokens.end();
  };
  in_raw_.split(text, is_text, [&](size_t begin, size_t end, const AddedToken* added) {
    Piece now = all.part(begin, end);
    if (added != nullptr) return token(now, *added);
    std::optional<AlignedText> rewritten;
    const size_t longest = longest_rewritten(end - begin);  // of all steps together
    for (const auto& normalizer : normalizers) {
      if (normalizer->keeps(now.text)) continue;
      AlignedText next(tracked, longest);
      next.reserve(now.text.size() + now.text.size() / 8);
      normalizer->rewrite(now, next);
      rewritten.emplace(std::move(next));
      now = rewritten->piece();
    }
    in_normalized_.split(now.text, is_text, [&](size_t from, size_t to, const AddedToken* inner) {
      if (inner != nullptr) token(now.part(from, to), *inner);
      else cut(0, now.part(from, to), word);
    });
  });
}

void Impl::encode(std::string_view text, const EncodeOptions& options, bool ids_only, Scratch& scratch, Encoding& out,
                  std::vector<Spaces>& spaces) const {
  if (text.size() > INT32_MAX) throw Error("encode: at most 2 GB of text at once");
  if (const size_t valid = io::valid_utf8_prefix(text); valid < text.size())
    throw Error(absl::StrCat("encode: the text is not valid UTF-8 at byte ", valid));
  out.ids.reserve(text.size() / 3);
  int32_t word_id = 0;
  // `spelled`: the token as the reference spells it.
  const auto push = [&](int32_t id, const Piece& piece, size_t begin, size_t end, std::string_view spelled) {
    out.ids.push_back(id);
    if (ids_only) return;
    if (post_processor.trim_offsets) spaces.push_back(spaces_of(spelled));
    const Span source = piece.source(begin, end);
    const int32_t base = options.at_start ? 0 : 1;
    out.offsets.push_back({static_cast<int32_t>(source.begin) - base, static_cast<int32_t>(source.end) - base});
    out.word_ids.push_back(word_id);
  };
  std::vector<Token> tokens;
  walk(
      text, options, !ids_only || pre_tokenizers.needs_source,
      [&](const Piece& piece) {
        tokens.clear();
        model->encode(piece.text, scratch, tokens);
        size_t at = 0;
        for (const Token& token : tokens) {
          push(token.id, piece, at, at + token.length, *model->vocabulary().token(token.id));
          at += token.length;
        }
        ++word_id;
      },
      [&](const Piece& piece, const AddedToken& token) {
        push(token.id, piece, 0, piece.text.size(), piece.text);
        ++word_id;
      });
  if (ids_only) return;
  if (options.offset_unit == OffsetUnit::kCodePoints &&
      std::any_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; })) {
    std::vector<int32_t> points(text.size() + 1);  // before each byte
    int32_t count = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      points[i] = count;
      if (i + 1 == text.size() || (text[i + 1] & 0xC0) != 0x80) ++count;
    }
    points[text.size()] = count;
    for (Encoding::Offset& offset : out.offsets)
      offset = {points[static_cast<size_t>(offset.begin)], points[static_cast<size_t>(offset.end)]};
  }
  out.type_ids.assign(out.size(), 0);
  out.sequence_ids.assign(out.size(), 0);
  out.attention_mask.assign(out.size(), 1);
  out.special_tokens_mask.assign(out.size(), 0);
}

Encoding Impl::encode_texts(std::span<const std::string_view> texts, const EncodeOptions& options,
                            Scratch& scratch) const {
  std::vector<Encoding> parts(texts.size());
  std::vector<std::vector<Spaces>> spaces(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) encode(texts[i], options, false, scratch, parts[i], spaces[i]);
  const auto& how = options.truncation ? options.truncation : truncation;
  if (how) truncate(parts, *how, options.add_special_tokens ? post_processor.added_tokens(texts.size() > 1) : 0);
  if (post_processor.trim_offsets)  // behind truncation: the first token that is left is treated as the first
    for (size_t i = 0; i < texts.size(); ++i) {
      const size_t cut = how && how->side == Side::kLeft ? spaces[i].size() - parts[i].size() : 0;
      trim_offsets(parts[i].offsets, std::span(spaces[i]).subspan(cut), post_processor.add_prefix_space);
    }
  return post_processor.join(std::move(parts), options.add_special_tokens);
}

template <class TextsOf>
std::vector<Encoding> Impl::encode_batch(size_t n, const EncodeOptions& options, TextsOf texts_of) const {
  return within_memory("encode", [&] {
    std::vector<Encoding> out(n);
    parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
      Lease scratch(*this);
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const auto texts = texts_of(i);
        out[i] = encode_texts(texts, options, *scratch);
      }
    });
    if (const auto& how = options.padding ? options.padding : padding) pad(out, *how);
    return out;
  });
}

// ---- The public face

PreTrainedTokenizer::PreTrainedTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreTrainedTokenizer::PreTrainedTokenizer(PreTrainedTokenizer&&) noexcept = default;
PreTrainedTokenizer& PreTrainedTokenizer::operator=(PreTrainedTokenizer&&) noexcept = default;
PreTrainedTokenizer::~PreTrainedTokenizer() = default;

const PreTrainedTokenizer::Impl& PreTrainedTokenizer::impl() const {
  if (impl_ == nullptr) throw Error("PreTrainedTokenizer: the tokenizer was moved to another object");
  return *impl_;
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
  const auto& truncation = options.truncation ? options.truncation : impl().truncation;
  const auto& padding = options.padding ? options.padding : impl().padding;
  if ((truncation && truncation->strategy != Truncation::kDoNotTruncate) ||
      (padding && padding->strategy != Padding::kDoNotPad))
    return std::move((*this)(text, options).ids);
  return within_memory("encode", [&]() -> std::vector<int32_t> {
    Impl::Lease scratch(impl());
    std::vector<Encoding> parts(1);
    std::vector<Spaces> no_spaces;
    impl().encode(text, options, true, *scratch, parts[0], no_spaces);
    if (!options.add_special_tokens || impl().post_processor.added_tokens(false) == 0) return std::move(parts[0].ids);
    return std::move(impl().post_processor.join(std::move(parts), true).ids);
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
  return impl().encode_batch(texts.size(), options, [&](size_t i) { return texts.subspan(i, 1); });
}

std::vector<Encoding> PreTrainedTokenizer::encode_batch(std::span<const TextPair> pairs,
                                                        const EncodeOptions& options) const {
  return impl().encode_batch(pairs.size(), options, [&](size_t i) {
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
      const std::string* token = impl().spelling(id);
      if (token == nullptr) continue;
      const AddedToken* added = impl().added_token(id);
      if (added == nullptr) tokens.push_back(*token);
      else if (!added->special || !options.skip_special_tokens) tokens.push_back(added->decoded);
    }
    std::string text = impl().decoders.join(std::move(tokens));
    if (impl().cleans_up) clean_up(text);
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

int64_t PreTrainedTokenizer::vocab_size() const { return impl().size(); }
int32_t PreTrainedTokenizer::token_to_id(std::string_view token) const { return impl().id(token); }
std::string PreTrainedTokenizer::id_to_token(int32_t id) const try {
  const std::string* token = impl().spelling(id);
  if (token == nullptr)
    throw Error(absl::StrCat("id_to_token: id ", id, " names no token of the vocabulary of ", vocab_size()));
  return *token;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("id_to_token");
}
bool PreTrainedTokenizer::is_added(int32_t id) const { return impl().added_token(id) != nullptr; }
std::vector<int32_t> PreTrainedTokenizer::opening_ids() const try {
  std::vector<int32_t> ids;
  if (!impl().post_processor.single) return ids;
  for (const TemplatePiece& piece : *impl().post_processor.single) {
    if (piece.sequence >= 0) break;
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
  }
  return ids;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("opening_ids");
}
bool PreTrainedTokenizer::is_special(int32_t id) const {
  const AddedToken* added = impl().added_token(id);
  return added != nullptr && added->special;
}
int32_t PreTrainedTokenizer::bos_token_id() const { return impl().id(impl().names.bos); }
int32_t PreTrainedTokenizer::eos_token_id() const { return impl().id(impl().names.eos); }
int32_t PreTrainedTokenizer::unk_token_id() const { return impl().id(impl().names.unk); }
int32_t PreTrainedTokenizer::pad_token_id() const { return impl().id(impl().names.pad); }
std::optional<int64_t> PreTrainedTokenizer::model_max_length() const { return impl().model_max_length; }
bool PreTrainedTokenizer::has_chat_template() const { return !impl().chat_templates.empty(); }

}  // namespace rondo::text
