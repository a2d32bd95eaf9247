// ExampleBatches: batches of an ExampleSet. Examples of similar lengths are batched together and padded to a few sizes.
//
//   auto train = std::make_shared<const data::ExampleSet>(data::read_prompts("train.jsonl", tokenizer, {}));
//   data::ExampleBatches batches(train, {.batch_size = 8, .max_length = model.config.block_size, .seed = 1});
//   while (auto batch = batches.next()) model.loss((*batch)[0], (*batch)[1]).backward();
//
// Batches are right-padded:
//   language model   {x, y}: i64 (B, T) each; y is the token after x if that token carries loss, else kIgnoreIndex
//   packed           {x, y, positions}: a row holds several examples; positions, i64 (B, T), begin at 0 in each.
//                    model.loss(x, y, positions) treats the examples as if each had a row of its own
//   labelled         {ids, mask, segments, labels}: i64, bool (true: a real token), i64, each (B, T), and i64 (B),
//                    or f32 (B, label_width()) for numbers or several classes: the operands of
//                    BertForSequenceClassification::loss, in its order
//
// Few sizes: T is one of sizes(), so that compiled regions see few shapes. The sizes are chosen so that the total
// padding is least. All batches of a size have the same number of rows, except for the last batch of an epoch. The
// examples of a batch are drawn at random from all examples of its size; those left over go to the next larger size.
// Packing has one size.
//
// The order is a function of (seed, epoch, batch_size). Every example appears once in an epoch. cut_from(rows) takes
// the order of a source with batches of `rows` rows: each batch is then a part of one of that source's batches, or
// joins several of them.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rondo/runtime/data/batch_source.h"
#include "rondo/runtime/data/example_set.h"

#pragma GCC visibility push(default)
namespace rondo::data {

struct ExampleBatchesOptions {
  int64_t batch_size = 8;  // B, rows
  // If positive, replaces batch_size: a batch of size T has max_tokens / T rows, and at least one.
  int64_t max_tokens = 0;
  // The largest T: the model's block_size. An example with more columns is an Error. 0: the longest example decides.
  int64_t max_length = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;  // leave out the last batch of an epoch if it has fewer rows
  // False: batches take the examples in their (shuffled) order, regardless of their lengths.
  bool group_by_length = true;
  int64_t max_sizes = 8;    // the largest number of sizes
  int64_t multiple_of = 8;  // sizes are multiples of this; max_length itself is also allowed
  // If not empty: these sizes are used, and none are chosen. The largest one must hold the longest example.
  std::vector<int64_t> sizes = {};
  // Packs several examples into a row of max_length columns, or of the one size in `sizes`. Not for labelled examples.
  bool pack = false;
  int64_t pad_id = 0;
};

class ExampleBatches : public BatchSource {
 public:
  // Throws Error for invalid options, and if an example does not fit.
  ExampleBatches(std::shared_ptr<const ExampleSet> examples, ExampleBatchesOptions options = {});

  std::optional<Batch> next() override;
  Position position() const override { return position_; }
  void seek(Position position) override;
  int64_t size() const override { return batches_; }
  Rows rows() const override;
  // Returns false with max_tokens, and unless `rows` is batch_size, a multiple of it or a divisor of it.
  bool cut_from(int64_t rows) override;
  // Identifies the order of the examples: all batches that are cut from one order have the same fingerprint.
  uint64_t fingerprint() const override;

  const ExampleSet& examples() const { return *examples_; }
  // Returns the values that T may have, in ascending order.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  // Returns the share of padding in all columns of the current epoch, from 0 to 1.
  double padding_share() const;
  // Returns the examples of the batch that next() returned last, row after row.
  std::span<const int64_t> batch_examples() const;

 private:
  struct Plan;
  struct PlannedBatch {
    int64_t rows_begin = 0, rows_end = 0;  // indices in Plan::row_begins
    int64_t columns = 0;                   // T
  };
  // The batches of an epoch. Without packing, each row is one example.
  struct Plan {
    int64_t epoch = -1;
    std::vector<int64_t> order = {};       // examples, row after row
    std::vector<int64_t> row_begins = {};  // where each row begins in `order`; the last entry is the end
    std::vector<PlannedBatch> batches = {};
  };
  int64_t rows_of(int64_t columns) const;
  size_t size_index(int64_t columns) const;
  std::vector<int64_t> shuffled(uint64_t epoch) const;
  const Plan& plan() const;
  void plan_grouped(Plan& plan) const;
  void plan_in_order(Plan& plan) const;
  void plan_packed(Plan& plan) const;
  void cut(Plan& plan) const;
  void pack_rows();
  Batch load(const PlannedBatch& batch, const Plan& plan) const;

  const std::shared_ptr<const ExampleSet> examples_;
  const ExampleBatchesOptions options_;
  int64_t order_rows_;  // the value of BatchSource::Rows::order
  std::vector<int64_t> sizes_;
  // Packing: the lengths of the examples in each row, one row after the other. The lengths are the same in every epoch;
  // the examples that have these lengths differ.
  std::vector<int64_t> packed_columns_, packed_begins_;
  int64_t batches_ = 0;
  Position position_;
  mutable Plan plan_;  // cache of the last plan
  std::vector<int64_t> returned_;
  mutable std::optional<uint64_t> fingerprint_;  // cache
};

// Returns at most `count` sizes, ascending, that hold all lengths with the least total padding. Each is a multiple of
// `multiple`, but at most `largest`. REQUIRES: `lengths` is not empty, and none is above `largest`.
std::vector<int64_t> choose_sizes(std::span<const int64_t> lengths, int64_t count, int64_t multiple, int64_t largest);

}  // namespace rondo::data
#pragma GCC visibility pop
