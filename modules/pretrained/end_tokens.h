// Finds the tokens that end a text which a published model writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/runtime/text/tokenizer.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Returns the ids in eos_token_id of the folder's generation_config.json. If that file or that field is missing, takes
// the field from config.json, or from the decoder in config.json. The field may be one id or several. The tokenizer's
// own end-of-text token (null: none) ends a text too. Throws FileError if a file cannot be read or the field is no id.
std::vector<int64_t> end_tokens(const std::string& folder, const text::PreTrainedTokenizer* tokenizer);

// Returns decoder_start_token_id of generation_config.json; nullopt if the file lacks it. Throws as end_tokens() does.
std::optional<int64_t> generation_start(const std::string& folder);

}  // namespace rondo::nn
#pragma GCC visibility pop
