// FunctionBatches: a BatchSource that gets its batches from a function.
//
//   const data::TokenDataset windows(tokens, /*block_size=*/64);
//   data::FunctionBatches batches(steps_of_an_epoch, [&](data::BatchSource::Position at) -> data::Batch {
//     const auto [x, y, targets] = windows.sample(/*batch_size=*/12, seed, at.batch);
//     return {x, y};
//   });
//
// A batch must depend only on its position, so that a run can resume at any batch.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "rondo/runtime/data/batch_source.h"

#pragma GCC visibility push(default)
namespace rondo::data {

class FunctionBatches : public BatchSource {
 public:
  using Make = std::function<Batch(Position)>;
  // `size`: batches in an epoch; kEndless: the epoch does not end. Throws Error if `size` is negative or `make` empty.
  FunctionBatches(int64_t size, Make make);

  // Rethrows an exception of the function; the batch is then skipped.
  std::optional<Batch> next() override;
  Position position() const override { return position_; }
  void seek(Position position) override;
  int64_t size() const override { return size_; }

 private:
  const int64_t size_;
  const Make make_;
  Position position_;
};

}  // namespace rondo::data
#pragma GCC visibility pop
