// ExampleBatches: batches of an ExampleSet, of like lengths, padded to a few sizes.
//
//   auto train = std::make_shared<const data::ExampleSet>(data::read_prompts("train.jsonl", tokenizer, {}));
//   data::ExampleBatches batches(train, {.batch_size = 8, .max_length = model.config.block_size, .seed = 1});
//   while (auto batch = batches.next()) model.loss((*batch)[0], (*batch)[1]).backward();
//
// Batches are right-padded:
//   language model   {x, y}: i64 (B, T) each; y is what follows x where it carries loss, else kIgnoreIndex
//   packed           {x, y, positions}: several examples stand in a row, and positions i64 (B, T) begin at 0 with each.
//                    model.loss(x, y, positions) computes what the examples would alone
//   labelled         {ids, mask, segments, labels}: i64, bool (true: a real token), i64, each (B, T), and i64 (B),
//                    or f32 (B, label_width()) for numbers or several classes: the operands of
//                    BertForSequenceClassification::loss, in its order
//
// Few sizes: T is one of sizes(), so that compiled regions see few shapes. They are chosen so that all examples
// together have the least padding. All batches of a size have the same number of rows, but for the last batch of an
// epoch. Examples of one size are drawn from the whole epoch, so batches are as random as their sizes allow; those that
// fill no batch of their size go to the next larger one. Packing has one size.
//
// The order is a function of (seed, epoch, batch_size). Every example appears once in an epoch. With cut_from() batches
// are parts of those of a larger batch_size, or several of those of a smaller one: the same rows in the same order.
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
  // Instead of batch_size: a batch of size T has max_tokens / T rows, and at least one. 0: batch_size says.
  int64_t max_tokens = 0;
  // The largest T: the model's block_size. An example with more columns is an Error. 0: as long as the longest.
  int64_t max_length = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;  // leave out the last batch of an epoch if it has fewer rows
  // False: batches take the examples in their (shuffled) order, whatever their lengths.
  bool group_by_length = true;
  int64_t max_sizes = 8;    // at most so many sizes
  int64_t multiple_of = 8;  // sizes are multiples of this, unless max_length is none
  // The sizes, instead of chosen ones. The largest one must hold the longest example.
  std::vector<int64_t> sizes = {};
  // Several examples in a row of max_length columns, or of the only size given. Not for labelled examples.
  bool pack = false;
  int64_t pad_id = 0;
};

class ExampleBatches : public BatchSource {
 public:
  // Throws Error for options that make no sense, and if an example does not fit.
  ExampleBatches(std::shared_ptr<const ExampleSet> examples, ExampleBatchesOptions options = {});

  std::optional<Batch> next() override;
  Position position() const override { return position_; }
  void seek(Position position) override;
  int64_t size() const override { return batches_; }
  Rows rows() const override;
  // `rows` may be batch_size, a multiple or a divisor of it. False with max_tokens.
  bool cut_from(int64_t rows) override;
  // Identifies the order of the examples: all batches that are cut from one order have the same fingerprint.
  uint64_t fingerprint() const override;

  const ExampleSet& examples() const { return *examples_; }
  // Ascending.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  // The share of padding in all columns of the epoch that next() is in, from 0 to 1.
  double padding_share() const;
  // The examples of the batch that next() returned last, row after row.
  std::span<const int64_t> batch_examples() const;

 private:
  struct Plan;
  struct PlannedBatch {
    int64_t rows_begin = 0, rows_end = 0;  // in Plan::row_begins
    int64_t columns = 0;                   // T
  };
  // The batches of an epoch. Without packing, each row is one example.
  struct Plan {
    int64_t epoch = -1;
    std::vector<int64_t> order = {};       // examples, row after row
    std::vector<int64_t> row_begins = {};  // of each row in `order`, and its end
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
  int64_t order_rows_;  // of the batches whose order this is
  std::vector<int64_t> sizes_;
  // Packing: the lengths in each row, one row after the other. It is the same in every epoch; which example of a length
  // stands where is not.
  std::vector<int64_t> packed_columns_, packed_begins_;
  int64_t batches_ = 0;
  Position position_;
  mutable Plan plan_;  // of position_.epoch, if it was needed
  std::vector<int64_t> returned_;
  mutable std::optional<uint64_t> fingerprint_;  // once it was asked for
};

// At most `count` sizes that hold all of the lengths with the least padding in sum, ascending. Each is a multiple of
// `multiple`, but at most `largest`. REQUIRES: no length is above `largest`, and there is one.
std::vector<int64_t> choose_sizes(std::span<const int64_t> lengths, int64_t count, int64_t multiple, int64_t largest);

}  // namespace rondo::data
#pragma GCC visibility pop
