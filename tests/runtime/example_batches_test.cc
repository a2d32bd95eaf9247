// Batches of examples: every example once, like lengths together, few sizes, and the same after a seek.
#include "rondo/runtime/data/example_batches.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "rondo/runtime/data/packing.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/tests/errors.h"

#include <gtest/gtest.h>

namespace rondo::data {
namespace {

std::shared_ptr<const ExampleSet> some_examples(int64_t n, int64_t longest, bool labelled = false) {
  auto set = std::make_shared<ExampleSet>();
  uint32_t state = 11;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int64_t i = 0; i < n; ++i) {
    Example example;
    const int64_t columns = 1 + static_cast<int64_t>(next()) % longest;
    for (int64_t c = 0; c < columns + (labelled ? 0 : 1); ++c) {
      example.ids.push_back(static_cast<int32_t>(next() % 1000));
      if (!labelled) example.targets.push_back(c == columns || next() % 3 != 0);
    }
    if (labelled) example.label = static_cast<int64_t>(next() % 3);
    set->add(example);
  }
  return set;
}

std::vector<int64_t> values(const Tensor& t) { return t.to_vector<int64_t>(); }

// Reads one epoch.
std::vector<Batch> epoch_of(ExampleBatches& batches) {
  std::vector<Batch> out;
  while (auto batch = batches.next()) out.push_back(*std::move(batch));
  return out;
}
bool equal(const Batch& a, const Batch& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(a[i].sizes() == b[i].sizes()) || a[i].dtype() != b[i].dtype() ||
        std::memcmp(a[i].raw_data(), b[i].raw_data(), static_cast<size_t>(a[i].nbytes())) != 0)
      return false;
  return true;
}

TEST(ExampleBatches, EveryExampleOnceAndExactly) {
  const auto set = some_examples(237, 50);
  for (const ExampleBatchesOptions& options :
       {ExampleBatchesOptions{.batch_size = 4}, ExampleBatchesOptions{.batch_size = 4, .group_by_length = false},
        ExampleBatchesOptions{.max_tokens = 200}, ExampleBatchesOptions{.batch_size = 3, .shuffle = false},
        ExampleBatchesOptions{.batch_size = 1000}, ExampleBatchesOptions{.max_tokens = 1}}) {
    ExampleBatches batches(set, options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::set<int64_t> seen;
      int64_t count = 0;
      while (const auto batch = batches.next()) {
        ++count;
        ASSERT_EQ(batch->size(), 2u);
        const int64_t B = (*batch)[0].size(0), T = (*batch)[0].size(1);
        const auto x = values((*batch)[0]), y = values((*batch)[1]);
        ASSERT_EQ(static_cast<int64_t>(batches.batch_examples().size()), B);
        EXPECT_TRUE(std::binary_search(batches.sizes().begin(), batches.sizes().end(), T));
        for (int64_t row = 0; row < B; ++row) {
          const int64_t index = batches.batch_examples()[static_cast<size_t>(row)];
          EXPECT_TRUE(seen.insert(index).second);
          const Example example = set->example(index);
          for (int64_t c = 0; c < T; ++c) {
            const auto at = static_cast<size_t>(row * T + c), i = static_cast<size_t>(c);
            const bool real = c < set->columns(index);
            ASSERT_EQ(x[at], real ? example.ids[i] : 0);
            ASSERT_EQ(y[at], real && example.targets[i + 1] ? example.ids[i + 1] : kIgnoreIndex);
          }
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), set->size());
      EXPECT_EQ(count, batches.size());
    }
  }
}

TEST(ExampleBatches, FewShapesAndLittlePadding) {
  const auto set = some_examples(4000, 300);
  ExampleBatches batches(set, {.max_tokens = 2048, .max_length = 300, .max_sizes = 6});
  EXPECT_LE(batches.sizes().size(), 6u);
  EXPECT_EQ(batches.sizes().back(), 300);
  std::set<std::pair<int64_t, int64_t>> shapes;
  int64_t cells = 0, used = 0;
  while (const auto batch = batches.next()) {
    const int64_t B = (*batch)[0].size(0), T = (*batch)[0].size(1);
    EXPECT_LE(B * T, 2048);
    if (batches.position().batch < batches.size()) shapes.insert({B, T});
    cells += B * T;
    for (const int64_t index : batches.batch_examples()) used += set->columns(index);
    // Like lengths: nothing that fits in a smaller size, but for the few that fill no batch there.
  }
  EXPECT_LE(shapes.size(), 6u);
  batches.seek({0, 0});
  EXPECT_DOUBLE_EQ(batches.padding_share(), 1.0 - static_cast<double>(used) / static_cast<double>(cells));
  EXPECT_LT(batches.padding_share(), 0.16);  // lengths are uniform: 6 sizes leave about 1 / 12 + rounding
  const ExampleBatches mixed(set, {.batch_size = 8, .group_by_length = false});
  EXPECT_GT(mixed.padding_share(), 0.35);
}

TEST(ExampleBatches, TheOrderIsAFunctionOfSeedAndEpoch) {
  const auto set = some_examples(100, 40);
  for (const bool pack : {false, true}) {
    const ExampleBatchesOptions options{.batch_size = 4, .seed = 5, .pack = pack};
    ExampleBatches first(set, options), second(set, options);
    ExampleBatchesOptions another = options;
    another.seed = 6;
    ExampleBatches third(set, another);
    const std::vector<Batch> a = epoch_of(first), b = epoch_of(second), c = epoch_of(third);
    const std::vector<Batch> next_epoch = epoch_of(first);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(next_epoch.size(), a.size());
    size_t same_as_other_seed = 0, same_as_next_epoch = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(equal(a[i], b[i]));
      same_as_other_seed += equal(a[i], c[i]);
      same_as_next_epoch += equal(a[i], next_epoch[i]);
    }
    EXPECT_LT(same_as_other_seed, a.size() / 2);
    EXPECT_LT(same_as_next_epoch, a.size() / 2);
    EXPECT_EQ(first.fingerprint(), second.fingerprint());
    EXPECT_NE(first.fingerprint(), third.fingerprint());
  }
}

// Batches of another size that are cut from the order of batches of 4.
TEST(ExampleBatches, OtherSizesOfOneOrder) {
  const auto set = some_examples(90, 40);
  const auto order_of = [](ExampleBatches& batches) {
    std::vector<std::vector<int64_t>> rows;
    for (int epoch = 0; epoch < 2; ++epoch)
      while (batches.next()) rows.emplace_back(batches.batch_examples().begin(), batches.batch_examples().end());
    return rows;
  };
  const auto joined = [](const std::vector<std::vector<int64_t>>& batches) {
    std::vector<int64_t> all;
    for (const auto& rows : batches) all.insert(all.end(), rows.begin(), rows.end());
    return all;
  };
  for (ExampleBatchesOptions options :
       {ExampleBatchesOptions{}, ExampleBatchesOptions{.group_by_length = false},
        ExampleBatchesOptions{.shuffle = false}, ExampleBatchesOptions{.max_length = 60, .pack = true}}) {
    options.batch_size = 4;
    ExampleBatches fours(set, options);
    const auto want = order_of(fours);
    EXPECT_EQ(fours.rows(), (BatchSource::Rows{4, 4}));
    for (const int64_t size : {1, 2, 8}) {
      options.batch_size = size;
      ExampleBatches batches(set, options), own(set, options);
      const bool grouped = options.group_by_length && options.shuffle && !options.pack;
      EXPECT_EQ(joined(order_of(own)) != joined(want), grouped) << "the order depends on the size";
      ASSERT_TRUE(batches.cut_from(4));
      EXPECT_EQ(batches.rows(), (BatchSource::Rows{size, 4}));
      EXPECT_EQ(batches.fingerprint(), fours.fingerprint());
      EXPECT_NE(batches.fingerprint(), own.fingerprint());
      const auto rows = order_of(batches);
      EXPECT_EQ(joined(rows), joined(want));
      EXPECT_EQ(static_cast<int64_t>(rows.size()), 2 * batches.size());
      for (size_t i = 0; i + 1 < rows.size() / 2 && !options.pack; ++i)
        EXPECT_EQ(static_cast<int64_t>(rows[i].size()), size);
      // Each batch of 4 is one of these, or several of these are one of 4, from any position.
      batches.seek({1, batches.size() / 2});
      batches.next();
      EXPECT_EQ(std::vector<int64_t>(batches.batch_examples().begin(), batches.batch_examples().end()),
                rows[static_cast<size_t>(batches.size() + batches.size() / 2)]);
      ASSERT_TRUE(batches.cut_from(size));
      EXPECT_EQ(batches.position(), (BatchSource::Position{1, 0}));
      batches.seek({});
      own.seek({});
      EXPECT_EQ(order_of(batches), order_of(own));
      EXPECT_EQ(batches.cut_from(3 * size + 1), size == 1);
      EXPECT_FALSE(batches.cut_from(0));
    }
  }
  ExampleBatches by_tokens(set, {.max_tokens = 100});
  EXPECT_FALSE(by_tokens.cut_from(4));
  EXPECT_EQ(by_tokens.rows(), BatchSource::Rows{});
  ExampleBatches without_last(set, {.batch_size = 8, .drop_last = true});
  const int64_t size = without_last.size();
  ASSERT_TRUE(without_last.cut_from(2));
  EXPECT_EQ(without_last.size(), size);
  EXPECT_FALSE(without_last.cut_from(96)) << "no whole batch";
  EXPECT_EQ(without_last.rows(), (BatchSource::Rows{8, 2}));
}

TEST(ExampleBatches, SeekReturnsToTheSameBatch) {
  const auto set = some_examples(90, 40);
  for (const bool pack : {false, true}) {
    const ExampleBatchesOptions options{.max_tokens = 100, .pack = pack};
    ExampleBatches batches(set, options);
    std::vector<std::pair<BatchSource::Position, Batch>> read;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (;;) {
        const BatchSource::Position at = batches.position();
        auto batch = batches.next();
        if (!batch) break;
        read.push_back({at, *std::move(batch)});
      }
    }
    EXPECT_EQ(batches.position(), (BatchSource::Position{3, 0}));
    ExampleBatches fresh(set, options);
    for (size_t i = read.size(); i-- > 0;) {
      fresh.seek(read[i].first);
      const auto again = fresh.next();
      ASSERT_TRUE(again.has_value());
      EXPECT_TRUE(equal(*again, read[i].second));
    }
    fresh.seek({1, fresh.size()});
    EXPECT_FALSE(fresh.next().has_value());
    EXPECT_EQ(fresh.position(), (BatchSource::Position{2, 0}));
    EXPECT_NE(test::error_of([&] { fresh.seek({0, fresh.size() + 1}); }), "");
    EXPECT_NE(test::error_of([&] { fresh.seek({-1, 0}); }), "");
  }
}

TEST(ExampleBatches, LabelledBatches) {
  auto set = std::make_shared<ExampleSet>();
  set->add({.ids = {5, 6, 7}, .second = {false, true, true}, .label = 2});
  set->add({.ids = {8}, .label = 0});
  ExampleBatches batches(set, {.batch_size = 2, .max_length = 4, .shuffle = false, .sizes = {4}, .pad_id = 9});
  const auto batch = batches.next();
  ASSERT_TRUE(batch.has_value());
  ASSERT_EQ(batch->size(), 4u);
  EXPECT_EQ(values((*batch)[0]), (std::vector<int64_t>{5, 6, 7, 9, 8, 9, 9, 9}));
  EXPECT_EQ((*batch)[1].dtype(), kBool);
  EXPECT_EQ(values((*batch)[1].to(kI64)), (std::vector<int64_t>{1, 1, 1, 0, 1, 0, 0, 0}));
  EXPECT_EQ(values((*batch)[2]), (std::vector<int64_t>{0, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values((*batch)[3]), (std::vector<int64_t>{2, 0}));
}

TEST(ExampleBatches, LastBatch) {
  const auto set = some_examples(10, 5);
  ExampleBatches all(set, {.batch_size = 4}), whole(set, {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(all.size(), 3);
  EXPECT_EQ(whole.size(), 2);
  for (const Batch& batch : epoch_of(whole)) EXPECT_EQ(batch[0].size(0), 4);
  EXPECT_EQ(epoch_of(all).back()[0].size(0), 2);
  EXPECT_NE(test::error_of([&] { ExampleBatches(set, {.batch_size = 11, .drop_last = true}); }), "");
}

TEST(ExampleBatches, RefusesWhatCannotBe) {
  const auto set = some_examples(10, 20), labelled = some_examples(10, 20, true);
  const auto refused = [](const auto& examples, const ExampleBatchesOptions& options) {
    return test::error_of([&] { ExampleBatches(examples, options); });
  };
  EXPECT_NE(refused(set, {.max_length = set->report().longest - 1}).find("read the examples with max_length"),
            std::string::npos);
  EXPECT_NE(refused(set, {.sizes = {4, 8}}), "");
  EXPECT_NE(refused(set, {.max_length = 30, .sizes = {40}}), "");
  EXPECT_NE(refused(set, {.batch_size = 0}), "");
  EXPECT_NE(refused(set, {.max_sizes = 0}), "");
  EXPECT_NE(refused(set, {.sizes = {0, 30}}), "");
  EXPECT_NE(refused(labelled, {.pack = true}), "");
  EXPECT_NE(refused(set, {.sizes = {20, 30}, .pack = true}), "");
  EXPECT_NE(refused(std::make_shared<const ExampleSet>(), {}), "");
  EXPECT_NE(refused(std::shared_ptr<const ExampleSet>(), {}), "");
}

TEST(ChooseSizes, LeastPadding) {
  const std::vector<int64_t> lengths = {1, 2, 3, 30, 31, 90, 91, 92, 93};
  EXPECT_EQ(choose_sizes(lengths, 3, 1, 100), (std::vector<int64_t>{3, 31, 93}));
  EXPECT_EQ(choose_sizes(lengths, 3, 8, 100), (std::vector<int64_t>{8, 32, 96}));
  EXPECT_EQ(choose_sizes(lengths, 3, 8, 93), (std::vector<int64_t>{8, 32, 93}));
  EXPECT_EQ(choose_sizes(lengths, 1, 8, 100), (std::vector<int64_t>{96}));
  EXPECT_EQ(choose_sizes(lengths, 100, 1, 93).size(), 9u);
  // Against all choices of two sizes.
  const auto columns = [&](const std::vector<int64_t>& sizes) {
    int64_t sum = 0;
    for (const int64_t length : lengths) sum += *std::lower_bound(sizes.begin(), sizes.end(), length);
    return sum;
  };
  int64_t best = INT64_MAX;
  for (int64_t size = 1; size < 93; ++size) best = std::min(best, columns({size, 93}));
  EXPECT_EQ(columns(choose_sizes(lengths, 2, 1, 93)), best);
  EXPECT_EQ(choose_sizes(std::vector<int64_t>{100000, 5}, 2, 8, 1 << 20).size(), 2u);
}

// ---- Packing

TEST(Packing, RowsHoldEverySequence) {
  uint32_t state = 1;
  std::vector<int64_t> lengths;
  for (int i = 0; i < 2000; ++i) lengths.push_back(1 + ((state = state * 1664525u + 1013904223u) >> 8) % 100);
  int64_t sum = 0, packed = 0;
  for (const int64_t length : lengths) sum += length;
  const auto rows = pack_best_fit(lengths, 128);
  std::map<int64_t, int> counts;
  for (const int64_t length : lengths) ++counts[length];
  for (const auto& row : rows) {
    int64_t columns = 0;
    for (const int64_t length : row) columns += length, --counts[length], ++packed;
    EXPECT_LE(columns, 128);
  }
  EXPECT_EQ(packed, 2000);
  for (const auto& [length, left] : counts) EXPECT_EQ(left, 0) << length;
  EXPECT_GT(static_cast<double>(sum) / static_cast<double>(rows.size() * 128), 0.98);
}

TEST(ExampleBatches, PackedRows) {
  const auto set = some_examples(150, 30);
  ExampleBatches batches(set, {.batch_size = 3, .max_length = 64, .pack = true});
  EXPECT_EQ(batches.sizes(), (std::vector<int64_t>{64}));
  EXPECT_LT(batches.padding_share(), 0.1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<int64_t> seen;
    while (const auto batch = batches.next()) {
      ASSERT_EQ(batch->size(), 3u);
      const int64_t B = (*batch)[0].size(0);
      const auto x = values((*batch)[0]), y = values((*batch)[1]), positions = values((*batch)[2]);
      auto next = batches.batch_examples().begin();
      for (int64_t row = 0; row < B; ++row) {
        for (int64_t c = 0; c < 64;) {
          const auto at = static_cast<size_t>(row * 64 + c);
          EXPECT_EQ(positions[at], 0);
          const bool padding = next == batches.batch_examples().end() || set->columns(*next) > 64 - c ||
                               x[at] != set->example(*next).ids[0] || positions[at] != 0;
          if (padding) {  // to the end of the row
            for (int64_t i = c; i < 64; ++i) {
              EXPECT_EQ(y[static_cast<size_t>(row * 64 + i)], kIgnoreIndex);
              EXPECT_EQ(positions[static_cast<size_t>(row * 64 + i)], i - c);
            }
            break;
          }
          const Example example = set->example(*next);
          EXPECT_TRUE(seen.insert(*next).second);
          for (int64_t i = 0; i < set->columns(*next); ++i) {
            const auto j = at + static_cast<size_t>(i), k = static_cast<size_t>(i);
            EXPECT_EQ(x[j], example.ids[k]);
            EXPECT_EQ(y[j], example.targets[k + 1] ? example.ids[k + 1] : kIgnoreIndex);
            EXPECT_EQ(positions[j], i);
          }
          c += set->columns(*next++);
        }
      }
      EXPECT_EQ(next, batches.batch_examples().end());
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), set->size());
  }
}

}  // namespace
}  // namespace rondo::data
