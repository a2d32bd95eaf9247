// BatchShare: one process's share of the batches, when several processes read the same source.
//
//   data::BatchShare mine(source, rank, n);   // source: the same batches in the same order in every process
//   while (auto batch = mine.next()) step(*batch);
//
// Note [Global batch order]. The source's order is the order of the whole job. Each next() takes the next group of n
// batches: process r gets batch r of the group. position() is the source's position of the next group, so it is the
// same in all processes. A job with another number of processes can continue from it: no batch of the epoch is left out
// or read twice. The last group of an epoch may be smaller than n. A process without a batch in that group gets the
// epoch's last batch and must not count it. owns(position()), called before next(), tells whether the batch counts.
//
// Thread safety: one thread at a time. The source must outlive this object. If several readers share one source, they
// take turns after whole epochs, and each calls seek() first.
#pragma once

#include "rondo/runtime/data/batch_source.h"

#pragma GCC visibility push(default)
namespace rondo::data {

class BatchShare final : public BatchSource {
 public:
  // Throws Error unless 0 <= rank < n.
  BatchShare(BatchSource& source, int rank, int n);

  std::optional<Batch> next() override;
  Position position() const override { return at_; }
  void seek(Position position) override;
  // Returns the number of batches of the source, for all processes together.
  int64_t size() const override { return source_.size(); }
  uint64_t fingerprint() const override { return source_.fingerprint(); }

  // True if the group that begins at `at` has a batch for this process.
  bool owns(Position at) const { return at.batch + rank_ < size(); }

 private:
  BatchSource& source_;
  const int rank_, n_;
  Position at_;
};

}  // namespace rondo::data
#pragma GCC visibility pop
