// DataLoader: batches of a Dataset, in order or shuffled, prepared ahead by worker threads.
//
//   data::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true, .seed = 1, .num_workers = 2});
//   for (int epoch = 0; epoch < 10; ++epoch)
//     while (auto batch = loader.next()) train((*batch)[0], (*batch)[1]);   // nullopt ends the epoch
//
// Batches are in host memory. DeviceBatches (device_batches.h) copies them to a device, one batch ahead.
// The order is a function of (seed, epoch): the same for any number of workers, and after seek(position()).
// Item tensors of shape (...) become a batch tensor of shape (B, ...).
// Each item gets its own Generator, seeded by (seed, epoch, index), from which a dataset draws its augmentations
// (Dataset::get(index, generator)): the same numbers for any number of workers, and after seek(position()).
// Threads: the first next() starts them, the destructor joins them and waits for at most one batch per worker. Call
// next(), seek() and position() from one thread. Ops in get() use only the worker's own thread (OneThread, parallel.h).
// Do not draw from the default generator in get(): each worker's thread has its own, so the numbers depend on which
// worker prepares the item, and a resumed run does not repeat them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rondo/runtime/data/batch_source.h"
#include "rondo/runtime/data/dataset.h"

#pragma GCC visibility push(default)
namespace rondo::data {

// A random permutation of [0, n) in constant memory: a Feistel network on the smallest even number of bits that holds
// n, with Philox as its round function. The network is applied again until the result is in [0, n): "cycle walking"
// (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
class Permutation {
 public:
  // Throws Error unless n is positive.
  Permutation(int64_t n, uint64_t seed, uint64_t epoch);
  // Returns the image of i, which is in [0, n). Throws Error if i is not in [0, n).
  int64_t operator()(int64_t i) const;

 private:
  uint64_t n_, seed_, epoch_;
  int half_bits_ = 1;
};

struct DataLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;
  uint64_t seed = 0;
  bool drop_last = false;  // leave out the last batch of an epoch if it is smaller
  int num_workers = 0;     // 0: next() prepares the batch itself
  int prefetch = 2;        // batches that each worker may be ahead
};

class DataLoader : public BatchSource {
 public:
  DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options);
  ~DataLoader() override;
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Rethrows an exception of the dataset for this batch; the batch is then skipped. Throws Error if the items differ in
  // shape or dtype. After OutOfMemoryError the next call tries the same batch again.
  std::optional<Batch> next() override;
  Position position() const override { return position_; }
  void seek(Position position) override;
  int64_t size() const override { return batches_; }
  void read_every(int64_t n) override;

 private:
  class Workers;  // the threads, and the batches that they have prepared
  Batch load(int64_t number) const;

  const std::shared_ptr<const Dataset> dataset_;
  const DataLoaderOptions options_;
  const int64_t items_;
  const int64_t batches_;
  Position position_;
  int64_t step_ = 1;                  // the consumer takes every step_-th batch
  std::unique_ptr<Workers> workers_;  // null before the start
};

// Stacks tensors of equal shape and dtype: (...) to (B, ...). Copies bytes, outside autograd and any recording.
Tensor stack(const std::vector<Tensor>& items);

}  // namespace rondo::data
#pragma GCC visibility pop
