// Decoders: tokens become text. Each is a step over a list of strings; the file's Sequence is a list of steps.
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

  // Bytes that are not UTF-8 stay as they are: replace_invalid_utf8() is what the reference makes of them.
  std::string join(std::vector<std::string> tokens) const;
};

// The steps of a file's "decoder". Throws FileError for what is not supported.
Decoders read_decoders(io::JsonReader& json);
std::unique_ptr<const Decoder> byte_level_decoder();
std::unique_ptr<const Decoder> word_piece_decoder(std::string prefix, bool cleanup);

// Takes out the spaces before punctuation and parts of English words: " ." becomes ".", " n't" "n't". As transformers'
// clean_up_tokenization; with `do_not`, as the WordPiece decoder of `tokenizers`, which shortens " do not", too.
void clean_up(std::string& text, bool do_not = false);

// U+FFFD for each longest prefix of a code point that is broken off (Unicode's "maximal subparts").
std::string replace_invalid_utf8(std::string text);

}  // namespace rondo::text
