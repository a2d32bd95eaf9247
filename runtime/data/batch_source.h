// BatchSource: what a training loop reads its batches from, and how it returns to the same batch after a kill.
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

// Tensors whose first dimension is the row.
using Batch = std::vector<Tensor>;

class BatchSource {
 public:
  // The next batch to be returned.
  struct Position {
    int64_t epoch = 0;
    int64_t batch = 0;  // within the epoch
    friend bool operator==(const Position&, const Position&) = default;
  };

  virtual ~BatchSource() = default;

  // The next batch, or nothing once at the end of each epoch; the call after that starts the next epoch.
  virtual std::optional<Batch> next() = 0;
  virtual Position position() const = 0;
  // Goes anywhere, at any time. Throws Error if the epoch has no such batch; one past the last is its end.
  virtual void seek(Position position) = 0;
  // Batches in an epoch. kEndless: it does not end, so that no arithmetic with its last batch makes sense.
  virtual int64_t size() const = 0;
  static constexpr int64_t kEndless = INT64_MAX;
  // A hint: the reader goes on to seek() so that it takes every n-th batch only (batch_share.h). A source that prepares
  // batches ahead prepares these.
  virtual void read_every(int64_t /*n*/) {}
  // Rows of a batch, but for the last one of an epoch; and of the batches whose order this is (cut_from). Zeros:
  // batches have no common number of rows.
  struct Rows {
    int64_t batch = 0, order = 0;
    friend bool operator==(const Rows&, const Rows&) = default;
  };
  virtual Rows rows() const { return {}; }
  // From now on an epoch has the rows of a source with `rows` rows a batch, in that source's order, cut into batches of
  // this one's size: a run that resumes with another batch size sees the rows that it would have seen. Goes to the
  // beginning of the epoch. False, and nothing changes: this source cannot do it.
  virtual bool cut_from(int64_t /*rows*/) { return false; }
  // A hash of what the batches depend on, data and options: saved with the position, it tells a resumed run that it
  // reads other data. 0: not known.
  virtual uint64_t fingerprint() const { return 0; }
};

}  // namespace rondo::data
#pragma GCC visibility pop
