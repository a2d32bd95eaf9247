#include "rondo/runtime/data/example_batches.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/data/packing.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::data {
namespace {

// A key that makes the order of batches independent of the order of examples.
constexpr uint64_t kBatchKey = 0x6261746368657300u;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

std::vector<int64_t> choose_sizes(std::span<const int64_t> lengths, int64_t count, int64_t multiple, int64_t largest) {
  // The most candidate sizes. With so few, trying all pairs of them is fast.
  constexpr int64_t kCandidates = 512;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  while (longest / multiple > kCandidates) multiple *= 2;
  std::map<int64_t, int64_t> counts;  // how many lengths round up to each size
  for (const int64_t length : lengths) ++counts[std::min(round_up(length, multiple), largest)];
  std::vector<int64_t> sizes, below = {0};  // below[i]: how many lengths fall into the first i sizes
  for (const auto& [size, n] : counts) {
    sizes.push_back(size);
    below.push_back(below.back() + n);
  }
  const size_t m = sizes.size(), most = std::min(static_cast<size_t>(count), m);
  // best[j]: the fewest columns in total for the lengths in the first j sizes, if size j - 1 is chosen. Each round
  // allows one more chosen size.
  std::vector<int64_t> best(m + 1, std::numeric_limits<int64_t>::max());
  best[0] = 0;
  std::vector<std::vector<size_t>> from(most, std::vector<size_t>(m + 1, 0));
  for (size_t round = 0; round < most; ++round) {
    std::vector<int64_t> next(m + 1, std::numeric_limits<int64_t>::max());
    for (size_t j = 1; j <= m; ++j)
      for (size_t i = 0; i < j; ++i) {
        if (best[i] == std::numeric_limits<int64_t>::max()) continue;
        const int64_t columns = best[i] + sizes[j - 1] * (below[j] - below[i]);
        if (columns < next[j]) next[j] = columns, from[round][j] = i;
      }
    best = std::move(next);
  }
  std::vector<int64_t> out;
  for (size_t round = most, j = m; round > 0; --round) {
    out.push_back(sizes[j - 1]);
    j = from[round - 1][j];
  }
  std::reverse(out.begin(), out.end());
  return out;
}

ExampleBatches::ExampleBatches(std::shared_ptr<const ExampleSet> examples, ExampleBatchesOptions options) try
    : examples_(std::move(examples)), options_(std::move(options)), order_rows_(options_.batch_size) {
  const ExampleBatchesOptions& o = options_;
  if (examples_ == nullptr || examples_->size() == 0) throw Error("ExampleBatches: there are no examples");
  for (const auto& [name, value, least] : {std::tuple("batch_size", o.batch_size, 1),
                                           {"max_tokens", o.max_tokens, 0},
                                           {"max_length", o.max_length, 0},
                                           {"max_sizes", o.max_sizes, 1},
                                           {"multiple_of", o.multiple_of, 1},
                                           {"pad_id", o.pad_id, 0}})
    if (value < least)
      throw Error(absl::StrCat("ExampleBatches: ", name, " is ", value, ", but must be at least ", least));
  if (o.pack && examples_->labelled()) throw Error("ExampleBatches: labelled examples cannot be packed");
  if (o.pack && o.sizes.size() > 1) throw Error("ExampleBatches: packed rows have one size");

  const int64_t longest = examples_->report().longest;
  int64_t largest = o.max_length > 0 ? o.max_length : std::numeric_limits<int64_t>::max();
  sizes_ = o.sizes;
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  if (!sizes_.empty()) {
    if (sizes_[0] < 1) throw Error(absl::StrCat("ExampleBatches: a size of ", sizes_[0]));
    if (sizes_.back() > largest)
      throw Error(absl::StrCat("ExampleBatches: the size ", sizes_.back(), " is above max_length ", largest));
    largest = sizes_.back();
  }
  if (longest > largest)
    throw Error(absl::StrCat("ExampleBatches: an example has ", longest, " columns, but the longest row has ", largest,
                             "; read the examples with max_length ", largest));
  if (sizes_.empty() && o.pack) {
    sizes_ = {o.max_length > 0 ? o.max_length : round_up(longest, o.multiple_of)};
  } else if (sizes_.empty()) {
    std::vector<int64_t> lengths(static_cast<size_t>(examples_->size()));
    for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = examples_->columns(static_cast<int64_t>(i));
    sizes_ = choose_sizes(lengths, o.max_sizes, o.multiple_of, largest);
  }
  if (o.pack) pack_rows();
  batches_ = static_cast<int64_t>(plan().batches.size());
  if (batches_ == 0)
    throw Error(absl::StrCat("ExampleBatches: ", examples_->size(),
                             " examples make no whole batch; use smaller batches or keep the last one (drop_last)"));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ExampleBatches");
}

int64_t ExampleBatches::rows_of(int64_t columns) const {
  return options_.max_tokens > 0 ? std::max<int64_t>(1, options_.max_tokens / columns) : order_rows_;
}

BatchSource::Rows ExampleBatches::rows() const {
  return options_.max_tokens > 0 ? Rows{} : Rows{options_.batch_size, order_rows_};
}

bool ExampleBatches::cut_from(int64_t rows) try {
  if (options_.max_tokens > 0 || rows < 1) return false;
  if (rows % options_.batch_size != 0 && options_.batch_size % rows != 0) return false;
  const auto set = [this](int64_t order_rows) {
    order_rows_ = order_rows;
    plan_ = {};
    fingerprint_.reset();
    batches_ = static_cast<int64_t>(plan().batches.size());
  };
  const int64_t before = order_rows_;
  set(rows);
  if (batches_ == 0) {  // drop_last leaves out every batch
    set(before);
    return false;
  }
  position_.batch = 0;
  return true;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ExampleBatches::cut_from");
}

size_t ExampleBatches::size_index(int64_t columns) const {
  return static_cast<size_t>(std::lower_bound(sizes_.begin(), sizes_.end(), columns) - sizes_.begin());
}

std::vector<int64_t> ExampleBatches::shuffled(uint64_t epoch) const {
  std::vector<int64_t> order(static_cast<size_t>(examples_->size()));
  std::iota(order.begin(), order.end(), 0);
  if (!options_.shuffle) return order;
  const Permutation permutation(examples_->size(), options_.seed, epoch);
  for (int64_t& index : order) index = permutation(index);
  return order;
}

const ExampleBatches::Plan& ExampleBatches::plan() const {
  if (plan_.epoch == position_.epoch) return plan_;
  Plan plan{.epoch = position_.epoch};
  if (options_.pack) plan_packed(plan);
  else if (options_.group_by_length) plan_grouped(plan);
  else plan_in_order(plan);
  if (order_rows_ != options_.batch_size && options_.max_tokens == 0) cut(plan);
  plan_ = std::move(plan);
  return plan_;
}

// Cuts each batch of order_rows_ rows into batches of batch_size rows, or joins several of them into one. The rows of
// successive batches are adjacent.
void ExampleBatches::cut(Plan& plan) const {
  const int64_t rows = options_.batch_size;
  std::vector<PlannedBatch> batches;
  for (const PlannedBatch& whole : plan.batches) {
    if (order_rows_ > rows) {
      for (int64_t begin = whole.rows_begin; begin < whole.rows_end; begin += rows)
        batches.push_back({begin, std::min(begin + rows, whole.rows_end), whole.columns});
    } else if (batches.empty() || batches.back().rows_end - batches.back().rows_begin == rows) {
      batches.push_back(whole);
    } else {
      batches.back().rows_end = whole.rows_end;
      batches.back().columns = std::max(batches.back().columns, whole.columns);
    }
  }
  if (options_.drop_last && !batches.empty() && batches.back().rows_end - batches.back().rows_begin < rows)
    batches.pop_back();
  plan.batches = std::move(batches);
}

void ExampleBatches::plan_grouped(Plan& plan) const {
  std::vector<std::vector<int64_t>> of_size(sizes_.size());
  for (const int64_t index : shuffled(static_cast<uint64_t>(plan.epoch)))
    of_size[size_index(examples_->columns(index))].push_back(index);
  // The number of batches of each size depends only on how many examples have this size, so it is the same in every
  // epoch.
  std::vector<std::vector<int64_t>> groups;
  std::vector<int64_t> columns, left;
  for (size_t s = 0; s < sizes_.size(); ++s) {
    left.insert(left.end(), of_size[s].begin(), of_size[s].end());
    const auto rows = static_cast<size_t>(rows_of(sizes_[s]));
    size_t at = 0;
    for (; at + rows <= left.size(); at += rows) {
      groups.emplace_back(left.begin() + static_cast<std::ptrdiff_t>(at),
                          left.begin() + static_cast<std::ptrdiff_t>(at + rows));
      columns.push_back(sizes_[s]);
    }
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(at));
  }
  const auto whole = static_cast<int64_t>(groups.size());
  const Permutation permutation(std::max<int64_t>(whole, 1), options_.seed ^ kBatchKey,
                                static_cast<uint64_t>(plan.epoch));
  const auto add = [&](const std::vector<int64_t>& group, int64_t T) {
    const auto begin = static_cast<int64_t>(plan.order.size());
    for (const int64_t index : group) {
      plan.row_begins.push_back(static_cast<int64_t>(plan.order.size()));
      plan.order.push_back(index);
    }
    plan.batches.push_back({begin, static_cast<int64_t>(plan.order.size()), T});
  };
  for (int64_t i = 0; i < whole; ++i) {
    const auto taken = static_cast<size_t>(options_.shuffle ? permutation(i) : i);
    add(groups[taken], columns[taken]);
  }
  if (!left.empty() && !options_.drop_last) {
    int64_t longest = 0;
    for (const int64_t index : left) longest = std::max(longest, examples_->columns(index));
    add(left, sizes_[size_index(longest)]);
  }
  plan.row_begins.push_back(static_cast<int64_t>(plan.order.size()));
}

void ExampleBatches::plan_in_order(Plan& plan) const {
  plan.order = shuffled(static_cast<uint64_t>(plan.epoch));
  const auto n = static_cast<int64_t>(plan.order.size());
  plan.row_begins.resize(plan.order.size() + 1);
  std::iota(plan.row_begins.begin(), plan.row_begins.end(), 0);
  // max_tokens is applied to the largest size, so that the rows of a batch do not depend on the shuffle.
  const int64_t rows = rows_of(sizes_.back());
  for (int64_t begin = 0; begin < n; begin += rows) {
    const int64_t end = std::min(begin + rows, n);
    if (end - begin < rows && options_.drop_last) break;
    int64_t longest = 0;
    for (int64_t i = begin; i < end; ++i)
      longest = std::max(longest, examples_->columns(plan.order[static_cast<size_t>(i)]));
    plan.batches.push_back({begin, end, sizes_[size_index(longest)]});
  }
}

void ExampleBatches::pack_rows() {
  std::vector<int64_t> lengths(static_cast<size_t>(examples_->size()));
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = examples_->columns(static_cast<int64_t>(i));
  for (const std::vector<int64_t>& row : pack_best_fit(std::move(lengths), sizes_[0])) {
    packed_begins_.push_back(static_cast<int64_t>(packed_columns_.size()));
    packed_columns_.insert(packed_columns_.end(), row.begin(), row.end());
  }
  packed_begins_.push_back(static_cast<int64_t>(packed_columns_.size()));
}

void ExampleBatches::plan_packed(Plan& plan) const {
  // The examples of each length in random order. Rows take them one by one.
  std::map<int64_t, std::vector<int64_t>> of_length;
  for (const int64_t index : shuffled(static_cast<uint64_t>(plan.epoch)))
    of_length[examples_->columns(index)].push_back(index);
  const auto rows = static_cast<int64_t>(packed_begins_.size()) - 1;
  const Permutation permutation(rows, options_.seed ^ kBatchKey, static_cast<uint64_t>(plan.epoch));
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = static_cast<size_t>(options_.shuffle ? permutation(i) : i);
    plan.row_begins.push_back(static_cast<int64_t>(plan.order.size()));
    for (int64_t slot = packed_begins_[row]; slot < packed_begins_[row + 1]; ++slot) {
      std::vector<int64_t>& left = of_length[packed_columns_[static_cast<size_t>(slot)]];
      plan.order.push_back(left.back());
      left.pop_back();
    }
  }
  plan.row_begins.push_back(static_cast<int64_t>(plan.order.size()));
  const int64_t batch_rows = rows_of(sizes_[0]);
  for (int64_t begin = 0; begin < rows; begin += batch_rows) {
    const int64_t end = std::min(begin + batch_rows, rows);
    if (end - begin == batch_rows || !options_.drop_last) plan.batches.push_back({begin, end, sizes_[0]});
  }
}

Batch ExampleBatches::load(const PlannedBatch& batch, const Plan& plan) const {
  const int64_t B = batch.rows_end - batch.rows_begin, T = batch.columns;
  const bool labelled = examples_->labelled();
  Tensor x = Tensor::full({B, T}, static_cast<double>(options_.pad_id), {kI64, kCPU});
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  if (labelled) {
    Tensor mask = Tensor::zeros({B, T}, {kBool, kCPU}), segments = Tensor::zeros({B, T}, {kI64, kCPU});
    const bool one_class = examples_->label_kind() == LabelKind::kClass;
    const int64_t width = examples_->label_width();
    Tensor labels = one_class ? Tensor::empty({B}, {kI64, kCPU}) : Tensor::empty({B, width}, {kF32, kCPU});
    for (int64_t row = 0; row < B; ++row) {
      const int64_t index = plan.order[at(plan.row_begins[at(batch.rows_begin + row)])];
      examples_->copy_columns(index, x.mutable_data<int64_t>() + row * T);
      std::fill_n(mask.mutable_data<bool>() + row * T, examples_->columns(index), true);
      if (examples_->has_pairs()) examples_->copy_segments(index, segments.mutable_data<int64_t>() + row * T);
      if (one_class) labels.mutable_data<int64_t>()[row] = examples_->label(index);
      else examples_->copy_label(index, labels.mutable_data<float>() + row * width);
    }
    return {x, mask, segments, labels};
  }
  Tensor y = Tensor::full({B, T}, static_cast<double>(kIgnoreIndex), {kI64, kCPU});
  Tensor positions = options_.pack ? Tensor::empty({B, T}, {kI64, kCPU}) : Tensor();
  for (int64_t row = 0; row < B; ++row) {
    int64_t* const x_row = x.mutable_data<int64_t>() + row * T;
    int64_t* const y_row = y.mutable_data<int64_t>() + row * T;
    int64_t* const positions_row = options_.pack ? positions.mutable_data<int64_t>() + row * T : nullptr;
    int64_t column = 0;
    for (int64_t slot = plan.row_begins[at(batch.rows_begin + row)];
         slot < plan.row_begins[at(batch.rows_begin + row + 1)]; ++slot) {
      const int64_t index = plan.order[at(slot)], n = examples_->columns(index);
      examples_->copy_columns(index, x_row + column);
      examples_->copy_targets(index, y_row + column);
      if (options_.pack) std::iota(positions_row + column, positions_row + column + n, 0);
      column += n;
    }
    // The positions of the padding begin at 0, so the padding counts as one more sequence.
    if (options_.pack) std::iota(positions_row + column, positions_row + T, 0);
  }
  if (options_.pack) return {x, y, positions};
  return {x, y};
}

std::optional<Batch> ExampleBatches::next() try {
  if (position_.batch >= batches_) {
    position_ = {position_.epoch + 1, 0};
    return std::nullopt;
  }
  const Plan& now = plan();
  const PlannedBatch& batch = now.batches[static_cast<size_t>(position_.batch)];
  Batch out = load(batch, now);
  const auto begin = now.row_begins[static_cast<size_t>(batch.rows_begin)],
             end = now.row_begins[static_cast<size_t>(batch.rows_end)];
  returned_.assign(now.order.begin() + begin, now.order.begin() + end);
  ++position_.batch;
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ExampleBatches::next");
}

void ExampleBatches::seek(Position position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch > batches_)
    throw Error(
        absl::StrCat("ExampleBatches::seek: epoch ", position.epoch, ", batch ", position.batch, " of ", batches_));
  position_ = position;
}

double ExampleBatches::padding_share() const {
  int64_t columns = 0, used = 0;
  const Plan& now = plan();
  for (const PlannedBatch& batch : now.batches) {
    columns += (batch.rows_end - batch.rows_begin) * batch.columns;
    for (int64_t slot = now.row_begins[static_cast<size_t>(batch.rows_begin)];
         slot < now.row_begins[static_cast<size_t>(batch.rows_end)]; ++slot)
      used += examples_->columns(now.order[static_cast<size_t>(slot)]);
  }
  return 1.0 - static_cast<double>(used) / static_cast<double>(columns);
}

std::span<const int64_t> ExampleBatches::batch_examples() const { return returned_; }

uint64_t ExampleBatches::fingerprint() const {
  if (fingerprint_) return *fingerprint_;
  std::vector<uint64_t> values = {examples_->fingerprint(),
                                  static_cast<uint64_t>(order_rows_),
                                  static_cast<uint64_t>(options_.max_tokens),
                                  options_.seed,
                                  static_cast<uint64_t>(options_.shuffle),
                                  static_cast<uint64_t>(options_.drop_last),
                                  static_cast<uint64_t>(options_.group_by_length),
                                  static_cast<uint64_t>(options_.pack),
                                  static_cast<uint64_t>(options_.pad_id)};
  for (const int64_t size : sizes_) values.push_back(static_cast<uint64_t>(size));
  io::Checksum sum;
  sum.update(values.data(), values.size() * sizeof(uint64_t));
  fingerprint_ = sum.digest();
  return *fingerprint_;
}

}  // namespace rondo::data
