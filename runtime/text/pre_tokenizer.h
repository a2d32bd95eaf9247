// Pre-tokenizers: cut text into words, which the model converts to tokens. Each is a step; a Sequence in the file is a
// list of steps.
//
// Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/aligned_text.h"

namespace rondo::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Calls `word` for each part of `in`, in order; no part is empty. A part is valid only during its call.
  virtual void cut(const Piece& in, absl::FunctionRef<void(const Piece&)> word) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  // The last step is ByteLevel: the model sees bytes, each spelled as one character.
  bool byte_level = false;
  // A step needs the position in the original text, so normalised text must be tracked.
  bool needs_source = false;
};

// GPT-2's pattern, which ByteLevel uses if use_regex is set.
inline constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Reads the steps of a file's "pre_tokenizer"; null: no steps. Throws FileError for anything that is not supported.
PreTokenizers read_pre_tokenizers(io::JsonReader& json);
std::unique_ptr<const PreTokenizer> bert_pre_tokenizer();
std::unique_ptr<const PreTokenizer> byte_level_pre_tokenizer(bool add_prefix_space, bool use_regex);
// Returns a step that makes a word of each match of `pattern`, and of each part between two matches.
std::unique_ptr<const PreTokenizer> split_pre_tokenizer(std::string_view pattern);

// The options of "Metaspace", which is a pre-tokenizer and a decoder.
struct Metaspace {
  enum Prepend { kAlways, kFirst, kNever };
  uint32_t replacement = 0x2581;  // LOWER ONE EIGHTH BLOCK
  Prepend prepend = kAlways;
  bool split = true;
};
Metaspace read_metaspace(io::JsonReader& json, const std::string& where);

}  // namespace rondo::text
