// The steps after the model: offsets are trimmed, templates put special tokens around texts,
// truncation, padding.
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
  int sequence = -1;  // 0 or 1: a text; -1: these ids
  std::vector<int32_t> ids{};
  int32_t type_id = 0;
};
using Template = std::vector<TemplatePiece>;

struct PostProcessor {
  // ByteLevel's and Roberta's: spaces at the ends of tokens are no part of their offsets.
  bool trim_offsets = false, add_prefix_space = true;
  std::optional<Template> single, pair;  // both or none

  int64_t added_tokens(bool is_pair) const;
  // The final encoding of one or two texts.
  Encoding join(std::vector<Encoding> texts, bool add_special_tokens) const;
};

// A file's "post_processor". Ids are below `vocab_size`. Throws FileError for what is not supported.
PostProcessor read_post_processor(io::JsonReader& json, int64_t vocab_size);
// cls A sep, cls A sep B sep.
void set_bert_template(PostProcessor& out, int32_t cls, int32_t sep);
// Makes it Roberta's: cls A sep, cls A sep sep B sep, all of type 0.
void make_roberta_template(PostProcessor& out);

std::optional<Truncation> read_truncation(io::JsonReader& json);
std::optional<Padding> read_padding(io::JsonReader& json);

// Throws Error if the strategy cannot shorten the texts enough.
void truncate(std::vector<Encoding>& texts, const Truncation& truncation, int64_t added_tokens);
void pad(std::span<Encoding> batch, const Padding& padding);

}  // namespace rondo::text
