// BatchSource: gives a training loop its batches, and returns to the same batch after a restart.
//
//   while (auto batch = source.next()) step(*batch);     // one epoch
//   const BatchSource::Position at = source.position();  // save it with the checkpoint
//   source.seek(at);                                     // in a later process: the next batch is the same one
//
// Implementations: DataLoader (data_loader.h), ExampleBatches (example_batches.h), BatchShare (batch_share.h).
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::data {

// Tensors whose first dimension counts the rows of the batch.
using Batch = std::vector<Tensor>;

class BatchSource {
 public:
  // The number of a batch. position() returns the number of the batch that next() will return.
  struct Position {
    int64_t epoch = 0;
    int64_t batch = 0;  // within the epoch
    friend bool operator==(const Position&, const Position&) = default;
  };

  virtual ~BatchSource() = default;

  // Returns the next batch. At the end of each epoch it returns nothing once; the next call starts the next epoch.
  virtual std::optional<Batch> next() = 0;
  virtual Position position() const = 0;
  // Goes to any position, at any time. Throws Error if the epoch has no batch with this number. `batch` may be size():
  // the end of the epoch.
  virtual void seek(Position position) = 0;
  // Returns the number of batches in an epoch. kEndless: an epoch never ends; do not compute with this number.
  virtual int64_t size() const = 0;
  static constexpr int64_t kEndless = INT64_MAX;
  // A hint: the reader will take only every n-th batch, and seek past the others (batch_share.h). A source that
  // prepares batches ahead then prepares only every n-th one.
  virtual void read_every(int64_t /*n*/) {}
  // `batch`: the number of rows of each batch, except for the last one of an epoch. `order`: the batch size that
  // defines the order of the rows: the argument of cut_from() if it was called, else the same as `batch`. Both are 0 if
  // batches have no common number of rows.
  struct Rows {
    int64_t batch = 0, order = 0;
    friend bool operator==(const Rows&, const Rows&) = default;
  };
  virtual Rows rows() const { return {}; }
  // For a run that resumes with another batch size: it must see the same rows in the same order as before. Sets the
  // order of rows to that of a source with batches of `rows` rows, cut into batches of this source's size, and goes to
  // the beginning of the epoch. Returns false, and changes nothing, if this source cannot do that.
  virtual bool cut_from(int64_t /*rows*/) { return false; }
  // Returns a hash of everything that the batches depend on: data and options. It is saved with the position, so that a
  // resumed run can detect other data. 0: not known.
  virtual uint64_t fingerprint() const { return 0; }
};

}  // namespace rondo::data
#pragma GCC visibility pop
