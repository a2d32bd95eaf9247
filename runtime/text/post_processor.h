// The steps after the model: trimming of offsets, truncation, templates that put special tokens around texts, padding.
//
// Thread safety: immutable.
#pragma once

#include <optional>
#include <vector>

#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/encoding.h"
#include "rondo/runtime/text/model.h"

namespace rondo::text {

struct TemplatePiece {
  int sequence = -1;  // 0 or 1: the first or second text; -1: `ids`
  std::vector<int32_t> ids{};
  int32_t type_id = 0;
};
using Template = std::vector<TemplatePiece>;

struct PostProcessor {
  // For ByteLevel and Roberta: offsets do not include spaces at the ends of a token.
  bool trim_offsets = false, add_prefix_space = true;
  std::optional<Template> single, pair;  // both or none

  int64_t added_tokens(bool is_pair) const;
  // Returns the final encoding of one or two texts.
  Encoding join(std::vector<Encoding> texts, bool add_special_tokens) const;
};

// Reads a file's "post_processor". Its ids must be below `vocab_size`. Throws FileError for anything not supported.
PostProcessor read_post_processor(io::JsonReader& json, int64_t vocab_size);
// Sets BERT's templates: cls A sep, and cls A sep B sep.
void set_bert_template(PostProcessor& out, int32_t cls, int32_t sep);
// Changes BERT's templates to Roberta's: cls A sep, and cls A sep sep B sep, all of type 0.
void make_roberta_template(PostProcessor& out);

std::optional<Truncation> read_truncation(io::JsonReader& json);
std::optional<Padding> read_padding(io::JsonReader& json);

// Shortens the texts so that they and the added tokens have at most max_length tokens. Throws Error if the strategy
// cannot shorten the texts enough.
void truncate(std::vector<Encoding>& texts, const Truncation& truncation, int64_t added_tokens);
void pad(std::span<Encoding> batch, const Padding& padding);

}  // namespace rondo::text
