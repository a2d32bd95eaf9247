// Token ids on disk, and the windows of tokens on which a language model trains.
//
//   data::TokenData tokens = data::TokenData::open("train.tok");
//   auto [train, val] = tokens.split(0.1);
//   data::TokenDataset windows(train, /*block_size=*/64);
//   auto [x, y] = windows.sample(/*batch_size=*/12, seed, step);   // (B, T) i64; y is x shifted by one token
//
// Files, little-endian:
//   .tok   "RONDOTOK", u32 version 1, u32 bytes per token (2 or 4), u64 vocabulary size (0: unknown), u64 count, ids
//   else   headerless u16 ids, as in nanoGPT's train.bin. A text file would be read as ids, too: tokenize it first
// Thread safety: everything here is immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/data/dataset.h"
#include "rondo/runtime/io/atomic_file.h"

#pragma GCC visibility push(default)
namespace rondo::data {

// A sequence of token ids, mapped or in memory. Copies and slices share the memory.
class TokenData {
 public:
  TokenData() = default;
  // Maps a file of either format. Throws FileError.
  static TokenData open(const std::string& path);
  // Copies ids into memory. Throws Error on a negative id.
  static TokenData from(std::span<const int32_t> ids);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return width_ == 2 ? static_cast<const uint16_t*>(data_)[i] : static_cast<const uint32_t*>(data_)[i];
  }
  // Returns the size of the vocabulary; all ids are below it. Returns 0 if the file does not give the size.
  int64_t vocab_size() const { return vocab_size_; }
  // Returns the largest id, found in a pass over all ids; -1 if there are none.
  int64_t max_id() const;
  // Sets out[i] to (*this)[begin + i]. REQUIRES: begin >= 0, begin + count <= size().
  void copy(int64_t begin, int64_t count, int64_t* out) const;
  // Returns the tokens [begin, end). Throws Error if the range is not within [0, size()].
  TokenData slice(int64_t begin, int64_t end) const;
  // Returns (train, val): the first and the last part, split at floor(size * (1 - val_fraction)) as in nanoGPT.
  std::pair<TokenData, TokenData> split(double val_fraction) const;

 private:
  std::shared_ptr<const void> owner_;
  const void* data_ = nullptr;
  int64_t size_ = 0;
  int width_ = 2;
  int64_t vocab_size_ = 0;
};

// Writes a .tok file piece by piece, atomically: the file is not visible before finish().
class TokenWriter {
 public:
  // Ids take two bytes if the vocabulary fits into 65,536, else four.
  TokenWriter(const std::string& path, int64_t vocab_size);
  // Writes ids. Throws Error on an id outside [0, vocab_size).
  void append(std::span<const int32_t> ids);
  void finish();

 private:
  io::AtomicFile file_;
  int64_t vocab_size_;
  uint64_t count_ = 0;
};
void write_tokens(const std::string& path, std::span<const int32_t> ids, int64_t vocab_size);

// The target that cross_entropy skips, for padding.
inline constexpr int64_t kIgnoreIndex = -100;

struct TokenBatch {
  Tensor x, y;          // (B, T) i64, in host memory: move them with .to(Device)
  int64_t targets = 0;  // entries of y that are not kIgnoreIndex
};

// Windows of `block_size` tokens. As a Dataset, its items are the whole windows without overlap: {x, y} of shape (T).
class TokenDataset : public Dataset {
 public:
  // Throws Error if there are not at least block_size + 1 tokens.
  TokenDataset(TokenData tokens, int64_t block_size);

  // Returns windows at random positions. Row r depends only on (seed, step, r), so a run resumes its data from its step
  // number. The first row has number `first_row`: processes that share a batch take different rows.
  TokenBatch sample(int64_t batch_size, uint64_t seed, int64_t step, int64_t first_row = 0) const;

  // Batches that cover every target of the split exactly once, in order. All have shape (batch_size, block_size); the
  // last one is padded with x = 0, y = kIgnoreIndex. So the mean loss is sum(loss_i * targets_i) / sum(targets_i).
  int64_t eval_batches(int64_t batch_size) const;
  TokenBatch eval_batch(int64_t index, int64_t batch_size) const;
  // Returns the number of targets in all evaluation batches.
  int64_t eval_targets() const { return tokens_.size() - 1; }

  int64_t size() const override { return eval_targets() / block_size_; }
  using Dataset::get;
  std::vector<Tensor> get(int64_t index) const override;

  const TokenData& tokens() const { return tokens_; }
  int64_t block_size() const { return block_size_; }

 private:
  // Fills one row from tokens [begin, begin + count], padding to block_size.
  void fill(int64_t begin, int64_t count, int64_t* x, int64_t* y) const;

  TokenData tokens_;
  int64_t block_size_;
};

}  // namespace rondo::data
#pragma GCC visibility pop
