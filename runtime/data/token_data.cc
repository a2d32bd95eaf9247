#include "rondo/runtime/data/token_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/random/random.h"

namespace rondo::data {
namespace {

struct Header {
  char magic[8] = {'R', 'O', 'N', 'D', 'O', 'T', 'O', 'K'};
  uint32_t version = 1;
  uint32_t width = 2;
  uint64_t vocab_size = 0;
  uint64_t count = 0;
};
static_assert(sizeof(Header) == 32);

constexpr int64_t kMaxNarrow = 65536;
__extension__ typedef unsigned __int128 Wide;

// A key that makes the sampler's numbers independent of tensors drawn with the same seed.
constexpr uint64_t kSamplerKey = 0x746F6B656E730000u;

}  // namespace

TokenData TokenData::open(const std::string& path) {
  const auto file = io::MappedFile::open(path);
  TokenData tokens;
  tokens.owner_ = file;
  const Header expected;
  if (file->size() >= sizeof expected.magic && std::memcmp(file->data(), expected.magic, sizeof expected.magic) == 0) {
    Header header;
    if (file->size() < sizeof header) throw FileError(path, "truncated token file: the header is 32 bytes");
    std::memcpy(&header, file->data(), sizeof header);
    if (header.version != 1) throw FileError(path, absl::StrCat("token file version ", header.version, " is unknown"));
    if (header.width != 2 && header.width != 4)
      throw FileError(path, absl::StrCat("a token takes 2 or 4 bytes, not ", header.width));
    const uint64_t bytes = file->size() - sizeof header;
    if (bytes % header.width != 0 || bytes / header.width != header.count)
      throw FileError(path, absl::StrCat("the header says ", header.count, " tokens of ", header.width, " bytes, but ",
                                         bytes, " bytes follow: truncated?"));
    if (header.vocab_size > uint64_t{1} << 32) throw FileError(path, "the vocabulary size is above 2^32");
    tokens.data_ = file->data() + sizeof header;
    tokens.size_ = static_cast<int64_t>(header.count);
    tokens.width_ = static_cast<int>(header.width);
    tokens.vocab_size_ = static_cast<int64_t>(header.vocab_size);
    // Ids index embedding tables. One pass here saves every reader the check.
    if (header.vocab_size > 0 && tokens.max_id() >= tokens.vocab_size_)
      throw FileError(path,
                      absl::StrCat("holds token ", tokens.max_id(), ", outside its vocabulary of ", header.vocab_size));
    return tokens;
  }
  if (file->size() % 2 != 0)
    throw FileError(path, absl::StrCat("neither a token file nor headerless 16-bit ids: ", file->size(), " bytes"));
  tokens.data_ = file->data();
  tokens.size_ = static_cast<int64_t>(file->size() / 2);
  return tokens;
}

TokenData TokenData::from(std::span<const int32_t> ids) {
  int64_t largest = -1;
  for (const int32_t id : ids) {
    if (id < 0) throw Error(absl::StrCat("TokenData::from: negative token ", id));
    largest = std::max<int64_t>(largest, id);
  }
  TokenData tokens;
  tokens.size_ = static_cast<int64_t>(ids.size());
  const auto adopt = [&]<class T>(std::vector<T> values) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    tokens.width_ = sizeof(T);
    tokens.data_ = owner->data();
    tokens.owner_ = std::move(owner);
  };
  if (largest < kMaxNarrow) adopt(std::vector<uint16_t>(ids.begin(), ids.end()));
  else adopt(std::vector<uint32_t>(ids.begin(), ids.end()));
  return tokens;
}

int64_t TokenData::max_id() const {
  const auto largest = [this]<class T>(const T* ids) -> int64_t {
    return size_ == 0 ? -1 : static_cast<int64_t>(*std::max_element(ids, ids + size_));
  };
  return width_ == 2 ? largest(static_cast<const uint16_t*>(data_)) : largest(static_cast<const uint32_t*>(data_));
}

void TokenData::copy(int64_t begin, int64_t count, int64_t* out) const {
  if (width_ == 2) std::copy_n(static_cast<const uint16_t*>(data_) + begin, count, out);
  else std::copy_n(static_cast<const uint32_t*>(data_) + begin, count, out);
}

TokenData TokenData::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || end < begin || end > size_)
    throw Error(absl::StrCat("TokenData::slice: [", begin, ", ", end, ") of ", size_, " tokens"));
  TokenData part = *this;
  if (data_ != nullptr) part.data_ = static_cast<const std::byte*>(data_) + begin * width_;
  part.size_ = end - begin;
  return part;
}

std::pair<TokenData, TokenData> TokenData::split(double val_fraction) const {
  if (!(val_fraction >= 0.0 && val_fraction <= 1.0))
    throw Error(absl::StrCat("TokenData::split: fraction ", val_fraction, " is outside [0, 1]"));
  const int64_t cut = static_cast<int64_t>(static_cast<double>(size_) * (1.0 - val_fraction));
  return {slice(0, cut), slice(cut, size_)};
}

TokenWriter::TokenWriter(const std::string& path, int64_t vocab_size) : file_(path), vocab_size_(vocab_size) {
  if (vocab_size < 1 || vocab_size > int64_t{1} << 31)
    throw Error(absl::StrCat("TokenWriter: vocabulary size ", vocab_size, " is outside [1, 2^31]"));
  const Header header;
  file_.write(&header, sizeof header);
}

void TokenWriter::append(std::span<const int32_t> ids) {
  const auto write = [&]<class T>(T) {
    std::vector<T> narrow;
    narrow.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size_)
        throw Error(absl::StrCat("TokenWriter: token ", id, " is outside the vocabulary of ", vocab_size_));
      narrow.push_back(static_cast<T>(id));
    }
    file_.write(narrow.data(), narrow.size() * sizeof(T));
  };
  if (vocab_size_ <= kMaxNarrow) write(uint16_t{});
  else write(uint32_t{});
  count_ += ids.size();
}

void TokenWriter::finish() {
  Header header;
  header.width = vocab_size_ <= kMaxNarrow ? 2 : 4;
  header.vocab_size = static_cast<uint64_t>(vocab_size_);
  header.count = count_;
  file_.write_at(0, &header, sizeof header);
  file_.commit();
}

void write_tokens(const std::string& path, std::span<const int32_t> ids, int64_t vocab_size) {
  TokenWriter writer(path, vocab_size);
  writer.append(ids);
  writer.finish();
}

TokenDataset::TokenDataset(TokenData tokens, int64_t block_size) : tokens_(std::move(tokens)), block_size_(block_size) {
  if (block_size < 1) throw Error(absl::StrCat("TokenDataset: block size ", block_size));
  if (tokens_.size() <= block_size)
    throw Error(absl::StrCat("TokenDataset: ", tokens_.size(), " tokens are too few for windows of ", block_size,
                             " and one target; use a longer text or a smaller block_size"));
}

void TokenDataset::fill(int64_t begin, int64_t count, int64_t* x, int64_t* y) const {
  tokens_.copy(begin, count, x);
  tokens_.copy(begin + (count > 0), count, y);
  std::fill(x + count, x + block_size_, 0);
  std::fill(y + count, y + block_size_, kIgnoreIndex);
}

TokenBatch TokenDataset::sample(int64_t batch_size, uint64_t seed, int64_t step, int64_t first_row) const {
  if (batch_size < 0) throw Error(absl::StrCat("TokenDataset: batch size ", batch_size));
  TokenBatch batch{Tensor::empty({batch_size, block_size_}, {kI64, kCPU}),
                   Tensor::empty({batch_size, block_size_}, {kI64, kCPU}), batch_size * block_size_};
  int64_t* x = batch.x.mutable_data<int64_t>();
  int64_t* y = batch.y.mutable_data<int64_t>();
  const uint64_t positions = static_cast<uint64_t>(tokens_.size() - block_size_);
  for (int64_t row = 0; row < batch_size; ++row) {
    const auto bits = philox(seed ^ kSamplerKey, static_cast<uint64_t>(first_row + row), static_cast<uint64_t>(step));
    const uint64_t word = static_cast<uint64_t>(bits[0]) << 32 | bits[1];
    // The high half of the product maps 64 bits to [0, positions); the bias is below 2^-20 for up to 2^44 positions.
    const auto at = static_cast<int64_t>((static_cast<Wide>(word) * positions) >> 64);
    fill(at, block_size_, x + row * block_size_, y + row * block_size_);
  }
  return batch;
}

int64_t TokenDataset::eval_batches(int64_t batch_size) const {
  if (batch_size < 1) throw Error(absl::StrCat("TokenDataset: batch size ", batch_size));
  // Rounds up. The usual (a + b - 1) / b would overflow for a huge batch size.
  const auto parts = [](int64_t all, int64_t size) { return all / size + (all % size != 0); };
  return parts(parts(eval_targets(), block_size_), batch_size);
}

TokenBatch TokenDataset::eval_batch(int64_t index, int64_t batch_size) const {
  if (index < 0 || index >= eval_batches(batch_size))
    throw Error(absl::StrCat("TokenDataset: evaluation batch ", index, " of ", eval_batches(batch_size)));
  TokenBatch batch{Tensor::empty({batch_size, block_size_}, {kI64, kCPU}),
                   Tensor::empty({batch_size, block_size_}, {kI64, kCPU}), 0};
  int64_t* x = batch.x.mutable_data<int64_t>();
  int64_t* y = batch.y.mutable_data<int64_t>();
  for (int64_t row = 0; row < batch_size; ++row) {
    const int64_t begin = std::min((index * batch_size + row) * block_size_, eval_targets());
    const int64_t count = std::min(block_size_, eval_targets() - begin);
    fill(begin, count, x + row * block_size_, y + row * block_size_);
    batch.targets += count;
  }
  return batch;
}

std::vector<Tensor> TokenDataset::get(int64_t index) const {
  if (index < 0 || index >= size()) throw Error(absl::StrCat("TokenDataset: window ", index, " of ", size()));
  Tensor x = Tensor::empty({block_size_}, {kI64, kCPU}), y = Tensor::empty({block_size_}, {kI64, kCPU});
  fill(index * block_size_, block_size_, x.mutable_data<int64_t>(), y.mutable_data<int64_t>());
  return {x, y};
}

}  // namespace rondo::data
