// Simple tokenizers that need no vocabulary file. Tokenizers of published models: text/tokenizer.h.
//
//   io::CharTokenizer chars = io::CharTokenizer::from_text(text);
//   std::vector<int32_t> ids = chars.encode("To be");
//   std::string same = chars.decode(ids);
//
// Thread safety: encode() and decode() may run on several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::io {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Returns the text of the ids. Throws Error on an id outside [0, vocab_size()).
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // As above, for i64 ids, as in tensors and from nn::generate().
  std::string decode(std::span<const int64_t> ids) const;
  virtual int64_t vocab_size() const = 0;
};

// One id per byte; any bytes round-trip.
class ByteTokenizer : public Tokenizer {
 public:
  using Tokenizer::decode;
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return 256; }
};

// One id per Unicode code point that occurs in a text, in code-point order (for ASCII, nanoGPT's order). Invalid UTF-8
// is an Error that names the byte offset. A code point outside the vocabulary is an Error that names the code point and
// its byte offset.
class CharTokenizer : public Tokenizer {
 public:
  using Tokenizer::decode;
  static CharTokenizer from_text(std::string_view text);
  // Reads {"type": "char", "vocabulary": ["\n", " ", ..]}; `path` names the file in errors. Throws FileError.
  static CharTokenizer from_json(std::string_view json, const std::string& path);
  static CharTokenizer load(const std::string& path);
  std::string to_json() const;
  // Writes the file atomically.
  void save(const std::string& path) const;

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(points_.size()); }

 private:
  explicit CharTokenizer(std::vector<uint32_t> points);

  std::vector<uint32_t> points_;  // id -> code point, ascending
  std::vector<int32_t> low_ids_;  // code point below 256 -> id or -1, so that most text needs no search
};

}  // namespace rondo::io
#pragma GCC visibility pop
