// Reads tokenizer.json, which holds a whole tokenizer in one file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/text/tokenizer_parts.h"

namespace rondo::text {

// The largest size of a tokenizer file, in bytes. Files are copied, not mapped: if another process truncates the file
// while it is read, this is an error, not a signal.
inline constexpr uint64_t kLargestFile = uint64_t{1} << 30;
// Changes that the other files of a folder make to tokenizer.json (tokenizer_class.cc).
struct Amendments {
  // JSON texts. Each replaces the part of the file that has its name; empty: the file's own part stays.
  std::string normalizer{}, pre_tokenizer{}, decoder{};
  // Tokens, identified by their text. A token that is not in the file is added after the file's tokens, with the next
  // id. A token in the file keeps its id; it gets the flags given here if the id given here is not negative.
  std::vector<AddedToken> tokens{};
};
// Parses `text`, a tokenizer.json. `path` names it in errors.
std::unique_ptr<TokenizerParts> read_tokenizer_json(std::string_view text, const std::string& path,
                                                    const Amendments& amendments = {});

}  // namespace rondo::text
