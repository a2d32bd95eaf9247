// Models: convert a word to tokens, by BPE or WordPiece.
//
// Thread safety: immutable; each thread uses its own Scratch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text {

// A token, and the number of bytes of its word that it covers.
struct Token {
  int32_t id = 0;
  uint32_t length = 0;
};

// Tokens and their ids, both ways. Ids may have holes.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // not copyable: the ids_ of a copy would point into the original
  Vocabulary& operator=(Vocabulary&&) = default;

  // Reads {"token": id, ..}. Throws FileError for duplicate tokens or ids, and for an id of `file_size` or above.
  static Vocabulary read(io::JsonReader& json, size_t file_size);
  // Reads one token per line (vocab.txt).
  static Vocabulary read_lines(std::string_view text, const std::string& path);

  // Returns -1 if there is no such token.
  int32_t id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  // Returns null if no token has this id.
  const std::string* token(int64_t id) const {
    return id < 0 || id >= size() || !present_[static_cast<size_t>(id)] ? nullptr : &tokens_[static_cast<size_t>(id)];
  }
  // Returns one more than the largest id.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // Returns the number of tokens.
  int64_t count() const { return static_cast<int64_t>(ids_.size()); }

 private:
  void index();
  std::vector<std::string> tokens_;
  std::vector<bool> present_;
  HashMap<std::string_view, int32_t> ids_;  // views of tokens_, whose elements never move
};

// A direct-mapped cache of words and their tokens: a new word replaces the old one in its slot, so memory is bounded.
// Long words and words of many tokens are not cached.
class WordCache {
 public:
  struct Slot {
    static constexpr size_t kLongest = 22, kMostTokens = 5;
    uint8_t length = 0, count = 0;  // count 0: empty
    char word[kLongest];
    Token tokens[kMostTokens];
  };
  Slot& slot(size_t hash) {
    if (slots_.empty()) slots_.resize(kSlots);
    return slots_[hash % kSlots];
  }

 private:
  static constexpr size_t kSlots = 1 << 14;
  std::vector<Slot> slots_;
};

// Working memory of one encoding thread, reused by later calls.
struct Scratch {
  WordCache cache;
  std::vector<Token> symbols;
  std::vector<int32_t> ranks, merged;
  std::string spelled;
};

class Model {
 public:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Model() = default;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  virtual bool is_byte_pair() const { return false; }
  // Appends the tokens of a word that is not empty.
  void encode(std::string_view word, Scratch& scratch, std::vector<Token>& out) const;

 protected:
  virtual void encode_anew(std::string_view word, Scratch& scratch, std::vector<Token>& out) const = 0;
  Vocabulary vocabulary_;
};

// Byte pair encoding (Sennrich et al., 2016): the adjacent pair of lowest rank is merged, the leftmost if ranks are
// equal, until no pair can be merged.
struct BpeOptions {
  // True: the symbols of a word are bytes, spelled in GPT-2's alphabet. False: they are code points.
  bool byte_level = false;
  std::string prefix{}, suffix{};  // prefix: of symbols inside a word; suffix: of the last symbol of a word
  std::optional<std::string> unk_token{};
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
};
using MergeList = std::vector<std::pair<std::string, std::string>>;
// Makes a BPE model. Throws FileError if a merge names a token that is not in the vocabulary. `path` is for errors.
std::unique_ptr<const Model> make_bpe(Vocabulary vocabulary, const MergeList& merges, BpeOptions options,
                                      const std::string& path);
// Reads merges.txt.
MergeList read_merges(std::string_view text, const std::string& path);

// WordPiece (Wu et al., 2016): repeatedly takes the longest token with which the rest of the word begins.
struct WordPieceOptions {
  std::string unk_token = "[UNK]", prefix = "##";
  int64_t max_input_chars_per_word = 100;
};
std::unique_ptr<const Model> make_word_piece(Vocabulary vocabulary, WordPieceOptions options, const std::string& path);

// Reads a file's "model". `byte_level`: PreTokenizers::byte_level. Throws FileError for anything that is not supported.
std::unique_ptr<const Model> read_model(io::JsonReader& json, size_t file_size, bool byte_level,
                                        const std::string& path);

// ---- GPT-2's byte alphabet: printable Latin-1 characters stand for themselves; the other 68 bytes become U+0100 and
// up, in byte order.
const std::array<std::string, 256>& byte_spelling();
// Appends the bytes of a spelled token. If a character stands for no byte, returns false and appends nothing.
bool append_bytes(std::string_view spelled, std::string& bytes);

}  // namespace rondo::text
