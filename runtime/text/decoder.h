// Decoders: convert tokens to text. Each is a step that changes a list of strings. A Sequence is a list of steps.
//
// Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/runtime/io/json.h"

namespace rondo::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

struct Decoders {
  std::vector<std::unique_ptr<const Decoder>> steps;
  bool present = false;  // without a decoder, tokens are joined by spaces

  // Applies the steps and joins the strings. Invalid UTF-8 stays in the result. (The reference replaces it, as
  // replace_invalid_utf8() does.)
  std::string join(std::vector<std::string> tokens) const;
};

// Reads the steps of a file's "decoder". Throws FileError for anything that is not supported.
Decoders read_decoders(io::JsonReader& json);
std::unique_ptr<const Decoder> byte_level_decoder();
std::unique_ptr<const Decoder> word_piece_decoder(std::string prefix, bool cleanup);

// Removes spaces before punctuation and before parts of English words: " ." becomes ".", " n't" becomes "n't". Equals
// clean_up_tokenization of transformers. With `do_not` it equals the WordPiece decoder of `tokenizers`, which also
// changes " do not" to " don't".
void clean_up(std::string& text, bool do_not = false);

// Replaces invalid bytes by U+FFFD: one for each longest incomplete prefix of a code point ("maximal subpart" in
// Unicode), and one for any other invalid byte.
std::string replace_invalid_utf8(std::string text);

}  // namespace rondo::text
