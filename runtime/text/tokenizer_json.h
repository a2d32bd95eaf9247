// tokenizer.json, the whole of a tokenizer in one file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/text/tokenizer_parts.h"

namespace rondo::text {

// Bytes of a tokenizer file. Files are copied, not mapped: one that is truncated meanwhile is an error and not a
// signal.
inline constexpr uint64_t kLargestFile = uint64_t{1} << 30;
// Changes that the other files of a folder make to tokenizer.json (tokenizer_class.cc).
struct Amendments {
  // JSON instead of the file's own part; empty: the file's.
  std::string normalizer{}, pre_tokenizer{}, decoder{};
  // Tokens by their text. Those that the file lacks are added behind its own, with ids of their own. Of one that the
  // file has, the flags count if its id is not negative.
  std::vector<AddedToken> tokens{};
};
// tokenizer.json.
std::unique_ptr<TokenizerParts> read_tokenizer_json(std::string_view text, const std::string& path,
                                                    const Amendments& amendments = {});

}  // namespace rondo::text
