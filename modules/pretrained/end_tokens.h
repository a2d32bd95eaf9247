// The tokens that end a text which a published model writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/runtime/text/tokenizer.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// eos_token_id of the folder's generation_config.json; if that file or that field is missing, of config.json. Both may
// be one id or several. The tokenizer's own end-of-text token (null: none) ends a text too. Throws FileError if a file
// cannot be read or the field is no id.
std::vector<int64_t> end_tokens(const std::string& folder, const text::PreTrainedTokenizer* tokenizer);

}  // namespace rondo::nn
#pragma GCC visibility pop
