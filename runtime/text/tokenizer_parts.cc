#include "rondo/runtime/text/tokenizer_parts.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

// ---- Added tokens and ids

bool TokenizerParts::add_token(AddedToken token) {
  int32_t id = model->vocabulary().id(token.content);
  if (id < 0) {
    // As in the reference, the next id is the larger one of the vocabulary's count and the largest added id plus one.
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

void TokenizerParts::finish() {
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

const AddedToken* TokenizerParts::added_token(int64_t id) const {
  if (id < 0 || id > INT32_MAX) return nullptr;
  const auto found = added_by_id_.find(static_cast<int32_t>(id));
  return found == added_by_id_.end() ? nullptr : found->second;
}

const std::string* TokenizerParts::spelling(int64_t id) const {
  const AddedToken* added = added_token(id);
  return added != nullptr ? &added->content : model->vocabulary().token(id);
}

int32_t TokenizerParts::id(std::string_view token) const {
  const auto found = added_by_content_.find(token);
  return found != added_by_content_.end() ? found->second->id : model->vocabulary().id(token);
}

int64_t TokenizerParts::size() const {
  int64_t size = model->vocabulary().size();
  for (const AddedToken& token : added_) size = std::max<int64_t>(size, token.id + int64_t{1});
  return size;
}

// ---- Encoding

TokenizerParts::Lease::Lease(const TokenizerParts& parts) : parts_(parts) {
  {
    std::lock_guard lock(parts.mutex_);
    if (!parts.idle_.empty()) {
      scratch_ = std::move(parts.idle_.back());
      parts.idle_.pop_back();
    }
  }
  if (scratch_ == nullptr) scratch_ = std::make_unique<Scratch>();
}

TokenizerParts::Lease::~Lease() {
  std::lock_guard lock(parts_.mutex_);
  try {
    parts_.idle_.push_back(std::move(scratch_));
  } catch (const std::bad_alloc&) {  // no memory for the list: the scratch is freed
  }
}

namespace {

// Counts plain spaces and those in GPT-2's spelling (U+0120).
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

// Excludes the spaces at the ends of tokens from the offsets, except a single space that add_prefix_space put before
// the text. If the text begins with several spaces, they are the text's own.
void trim_offsets(std::vector<Encoding::Offset>& offsets, std::span<const Spaces> spaces, bool add_prefix_space) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    Encoding::Offset& offset = offsets[i];
    const bool was_put = (i == 0 || offset.begin == 0) && add_prefix_space && spaces[i].leading == 1;
    offset.begin = std::min(offset.begin + (was_put ? 0 : spaces[i].leading), offset.end);
    if (offset.end >= spaces[i].trailing) offset.end = std::max(offset.end - spaces[i].trailing, offset.begin);
  }
}

}  // namespace

void TokenizerParts::cut(size_t step, const Piece& piece, absl::FunctionRef<void(const Piece&)> word) const {
  if (step == pre_tokenizers.steps.size()) return word(piece);
  pre_tokenizers.steps[step]->cut(piece, [&](const Piece& part) { cut(step + 1, part, word); });
}

void TokenizerParts::walk(std::string_view text, const EncodeOptions& options, bool tracked,
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
    const size_t longest = longest_rewritten(end - begin);  // limit for all steps together
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

void TokenizerParts::encode(std::string_view text, const EncodeOptions& options, bool ids_only, Scratch& scratch,
                            Encoding& out, std::vector<Spaces>& spaces) const {
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
    std::vector<int32_t> points(text.size() + 1);  // the number of code points before each byte
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

Encoding TokenizerParts::encode_texts(std::span<const std::string_view> texts, const EncodeOptions& options,
                                      Scratch& scratch) const {
  std::vector<Encoding> parts(texts.size());
  std::vector<std::vector<Spaces>> spaces(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) encode(texts[i], options, false, scratch, parts[i], spaces[i]);
  const auto& how = options.truncation ? options.truncation : truncation;
  if (how) truncate(parts, *how, options.add_special_tokens ? post_processor.added_tokens(texts.size() > 1) : 0);
  if (post_processor.trim_offsets)  // trims after truncation: the first remaining token counts as the first
    for (size_t i = 0; i < texts.size(); ++i) {
      const size_t cut = how && how->side == Side::kLeft ? spaces[i].size() - parts[i].size() : 0;
      trim_offsets(parts[i].offsets, std::span(spaces[i]).subspan(cut), post_processor.add_prefix_space);
    }
  return post_processor.join(std::move(parts), options.add_special_tokens);
}

}  // namespace rondo::text
