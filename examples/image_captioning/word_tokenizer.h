// Makes a tokenizer of whole words from captions.
#pragma once

#include <span>
#include <string>

#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {

// Returns the tokenizer.json of a WordPiece tokenizer. Its vocabulary: [PAD], [CLS] (starts a caption), [SEP] (ends
// one), [UNK], every character of the captions, alone and within a word, and then the most frequent words, as many as
// vocab_size leaves room for. So it can encode all captions, and other texts of the same characters. Throws Error if
// there is no room for the characters, and for captions that are not UTF-8.
std::string word_tokenizer_json(std::span<const std::string> captions, int64_t vocab_size);

// Writes tokenizer.json, and the tokenizer_config.json with which transformers reads it. Throws FileError.
void save_word_tokenizer(const std::string& json, const std::string& folder);

}  // namespace rondo::examples
