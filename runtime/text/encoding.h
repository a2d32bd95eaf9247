// Encoding: the result of encoding a text. Also the options of encoding and decoding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::text {

// An encoded text. All vectors have one element per token.
struct Encoding {
  // [begin, end) of the token in its text; 0, 0 for a token that is not from a text.
  struct Offset {
    int32_t begin = 0, end = 0;
    bool operator==(const Offset&) const = default;
  };
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;
  std::vector<Offset> offsets;
  std::vector<int32_t> word_ids;             // the number of the token's word in its text, from 0; -1: no word
  std::vector<int32_t> sequence_ids;         // 0: the first text, 1: the second, -1: neither
  std::vector<int32_t> attention_mask;       // 0: padding
  std::vector<int32_t> special_tokens_mask;  // 1: added by the template, or padding
  size_t size() const { return ids.size(); }
};

enum class OffsetUnit {
  kCodePoints,  // as in the reference
  kBytes,
};
enum class Side { kLeft, kRight };

struct Truncation {
  enum Strategy { kLongestFirst, kOnlyFirst, kOnlySecond, kDoNotTruncate };
  int64_t max_length = 512;  // includes the tokens that the template adds
  Strategy strategy = kLongestFirst;
  Side side = Side::kRight;  // the side on which tokens are dropped
};
struct Padding {
  enum Strategy { kLongest, kMaxLength, kDoNotPad };
  Strategy strategy = kLongest;    // kLongest: to the length of the longest encoding in the batch
  int64_t max_length = 0;          // kMaxLength: to this length, at most 2^24
  int64_t pad_to_multiple_of = 0;  // at most 2^24; 0: any length
  Side side = Side::kRight;
  int32_t pad_id = 0;
  int32_t pad_type_id = 0;
};

struct EncodeOptions {
  bool add_special_tokens = true;
  // True: the text of a special token is encoded as ordinary text.
  bool split_special_tokens = false;
  // Ids of further added tokens. Their texts are encoded as ordinary text, too.
  std::vector<int32_t> split_tokens = {};
  // False: the text continues another text, so tokenizers that add a space before the first word add none.
  bool at_start = true;
  OffsetUnit offset_unit = OffsetUnit::kCodePoints;
  // nullopt: the setting of the file (no truncation and no padding if it has none).
  std::optional<Truncation> truncation = std::nullopt;
  std::optional<Padding> padding = std::nullopt;
};

struct DecodeOptions {
  bool skip_special_tokens = true;
  // True: invalid UTF-8 (a part of a character) becomes U+FFFD. False: the bytes stay, so that pieces can be joined.
  bool replace_invalid = true;
};

}  // namespace rondo::text
#pragma GCC visibility pop
