// Pre-tokenizers: they cut text into the words that a model turns into tokens. Each is a step; the file's Sequence is a
// list.
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
  // Calls `word` for each part of `in`, in order, none of them empty. A part is valid during its call.
  virtual void cut(const Piece& in, absl::FunctionRef<void(const Piece&)> word) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  // The last step is ByteLevel: the model sees bytes, each spelled as one character.
  bool byte_level = false;
  // A step asks where its text comes from, so it must be tracked.
  bool needs_source = false;
};

// GPT-2's pattern, which ByteLevel means by use_regex.
inline constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The steps of a file's "pre_tokenizer", none for null. Throws FileError for what is not supported.
PreTokenizers read_pre_tokenizers(io::JsonReader& json);
std::unique_ptr<const PreTokenizer> bert_pre_tokenizer();
std::unique_ptr<const PreTokenizer> byte_level_pre_tokenizer(bool add_prefix_space, bool use_regex);
// Each match of `pattern` and each stretch between matches is a word.
std::unique_ptr<const PreTokenizer> split_pre_tokenizer(std::string_view pattern);

// "Metaspace", as the pre-tokenizer and the decoder write it.
struct Metaspace {
  enum Prepend { kAlways, kFirst, kNever };
  uint32_t replacement = 0x2581;  // LOWER ONE EIGHTH BLOCK
  Prepend prepend = kAlways;
  bool split = true;
};
Metaspace read_metaspace(io::JsonReader& json, const std::string& where);

}  // namespace rondo::text
