// Token files, windows and the DataLoader.
#include "rondo/runtime/data/data_loader.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "rondo/runtime/data/token_data.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::data {
namespace {

std::vector<int32_t> some_ids(int64_t n, int32_t vocab = 1000) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  uint32_t state = 1;
  for (int32_t& id : ids) id = static_cast<int32_t>((state = state * 1664525u + 1013904223u) >> 8) % vocab;
  return ids;
}

// ---- Token files

TEST(TokenData, RoundTripsInBothWidths) {
  TempFolder folder;
  for (const int32_t vocab : {1000, 65536, 65537, 1 << 20}) {
    const std::string path = folder / "t.tok";
    const std::vector<int32_t> ids = some_ids(5000, vocab);
    write_tokens(path, ids, vocab);
    const TokenData tokens = TokenData::open(path);
    ASSERT_EQ(tokens.size(), 5000);
    EXPECT_EQ(tokens.vocab_size(), vocab);
    EXPECT_EQ(read_bytes(path).size(), 32u + 5000u * (vocab <= 65536 ? 2 : 4));
    for (int64_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], ids[static_cast<size_t>(i)]);
    EXPECT_EQ(TokenData::from(ids).max_id(), tokens.max_id());
  }
}

TEST(TokenData, HeaderlessSixteenBit) {
  TempFolder folder;
  const uint16_t ids[] = {1, 65535, 3};
  write_bytes(folder / "train.bin", {reinterpret_cast<const char*>(ids), sizeof ids});
  const TokenData tokens = TokenData::open(folder / "train.bin");
  ASSERT_EQ(tokens.size(), 3);
  EXPECT_EQ(tokens[1], 65535);
  EXPECT_EQ(tokens.vocab_size(), 0);
  write_bytes(folder / "empty.bin", "");
  EXPECT_EQ(TokenData::open(folder / "empty.bin").size(), 0);
  EXPECT_EQ(TokenData::open(folder / "empty.bin").max_id(), -1);
}

TEST(TokenData, RefusesBadFiles) {
  TempFolder folder;
  const std::string path = folder / "t.tok";
  write_tokens(path, some_ids(10), 1000);
  const std::string whole = read_bytes(path);
  const auto refused = [&](const std::string& bytes, std::string_view reason) {
    write_bytes(path, bytes);
    expect_file_error(path, reason, [&] { TokenData::open(path); });
  };
  for (size_t length = 8; length < whole.size(); ++length) refused(whole.substr(0, length), "truncated");
  refused(whole + "xx", "the header says 10");
  refused("odd", "neither");
  const auto with = [&](size_t at, uint64_t value, size_t bytes) {
    std::string changed = whole;
    std::memcpy(changed.data() + at, &value, bytes);
    return changed;
  };
  refused(with(8, 2, 4), "version 2");
  refused(with(12, 3, 4), "not 3");
  refused(with(12, 0, 4), "not 0");
  refused(with(16, 5, 8), "outside its vocabulary of 5");
  refused(with(16, UINT64_MAX, 8), "above 2^32");
  refused(with(24, UINT64_MAX, 8), "the header says");
  refused(with(24, (uint64_t{1} << 63) + 10, 8), "the header says");
  expect_file_error(folder / "none", "No such file", [&] { TokenData::open(folder / "none"); });
  EXPECT_THROW(write_tokens(path, std::vector<int32_t>{5}, 5), Error);
  EXPECT_THROW(write_tokens(path, std::vector<int32_t>{-1}, 5), Error);
  EXPECT_THROW(TokenData::from(std::vector<int32_t>{-1}), Error);
  EXPECT_EQ(folder.entries(), 1) << "a failed writer left a file";
}

TEST(TokenData, SplitsWhereNanoGptDoes) {
  const std::vector<int32_t> ids = some_ids(1'115'394);
  const auto [train, val] = TokenData::from(ids).split(0.1);
  EXPECT_EQ(train.size(), 1'003'854);
  EXPECT_EQ(val.size(), 111'540);
  EXPECT_EQ(val[0], ids[1'003'854]);
  EXPECT_THROW(train.slice(0, train.size() + 1), Error);
  EXPECT_THROW(train.split(1.5), Error);
}

// ---- Windows

TEST(TokenDataset, SamplesDependOnSeedStepAndRowAlone) {
  const std::vector<int32_t> ids = some_ids(10'000);
  const TokenDataset windows(TokenData::from(ids), 16);
  std::set<std::vector<int64_t>> rows;
  for (int64_t step : {0, 1, 2, 1'000'000}) {
    const TokenBatch batch = windows.sample(8, 42, step);
    EXPECT_EQ(batch.x.sizes(), (Dims{8, 16}));
    EXPECT_EQ(batch.x.dtype(), kI64);
    EXPECT_EQ(batch.targets, 8 * 16);
    const std::vector<int64_t> x = batch.x.to_vector<int64_t>(), y = batch.y.to_vector<int64_t>();
    EXPECT_EQ(windows.sample(8, 42, step).x.to_vector<int64_t>(), x);
    // Fewer rows: the same ones.
    const std::vector<int64_t> fewer = windows.sample(3, 42, step).x.to_vector<int64_t>();
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), x.begin()));
    // The last five of the eight.
    const std::vector<int64_t> share = windows.sample(5, 42, step, /*first_row=*/3).x.to_vector<int64_t>();
    EXPECT_TRUE(std::equal(share.rbegin(), share.rend(), x.rbegin()));
    EXPECT_NE(windows.sample(8, 43, step).x.to_vector<int64_t>(), x);
    for (size_t row = 0; row < 8; ++row) {
      for (size_t t = 0; t < 15; ++t) EXPECT_EQ(y[row * 16 + t], x[row * 16 + t + 1]);
      rows.insert({x.begin() + static_cast<int64_t>(row) * 16, x.begin() + static_cast<int64_t>(row + 1) * 16});
    }
  }
  EXPECT_EQ(rows.size(), 32u);
}

TEST(TokenDataset, SamplesReachBothEnds) {
  const TokenDataset windows(TokenData::from(std::vector<int32_t>{0, 1, 2, 3, 4}), 2);  // positions 0, 1, 2
  std::map<int64_t, int> starts;
  for (int64_t step = 0; step < 3000; ++step) ++starts[windows.sample(1, 7, step).x.data<int64_t>()[0]];
  ASSERT_EQ(starts.size(), 3u);
  for (const auto& [start, count] : starts) EXPECT_NEAR(count, 1000, 120) << start;
  // The shortest possible text has one window.
  const TokenDataset one(TokenData::from(std::vector<int32_t>{5, 6, 7}), 2);
  EXPECT_EQ(one.sample(1, 0, 0).y.to_vector<int64_t>(), (std::vector<int64_t>{6, 7}));
  EXPECT_THROW(TokenDataset(TokenData::from(std::vector<int32_t>{5, 6}), 2), Error);
  EXPECT_THROW(TokenDataset(TokenData(), 2), Error);
  EXPECT_THROW(one.sample(-1, 0, 0), Error);
}

TEST(TokenDataset, EvaluationCoversEveryTargetOnce) {
  for (int64_t n : {5, 9, 10, 63, 64, 65, 66, 200}) {
    for (int64_t block : {1, 4, 8}) {
      if (n <= block) continue;
      for (int64_t batch_size : {1, 3, 100}) {
        const std::vector<int32_t> ids = some_ids(n);
        const TokenDataset windows(TokenData::from(ids), block);
        std::vector<int64_t> inputs, targets;
        int64_t counted = 0;
        for (int64_t b = 0; b < windows.eval_batches(batch_size); ++b) {
          const TokenBatch batch = windows.eval_batch(b, batch_size);
          ASSERT_EQ(batch.x.sizes(), (Dims{batch_size, block}));
          EXPECT_GT(batch.targets, 0);
          counted += batch.targets;
          const std::vector<int64_t> x = batch.x.to_vector<int64_t>(), y = batch.y.to_vector<int64_t>();
          for (size_t i = 0; i < y.size(); ++i) {
            if (y[i] == kIgnoreIndex) continue;
            inputs.push_back(x[i]);
            targets.push_back(y[i]);
          }
        }
        EXPECT_EQ(counted, windows.eval_targets());
        EXPECT_EQ(inputs, std::vector<int64_t>(ids.begin(), ids.end() - 1));
        EXPECT_EQ(targets, std::vector<int64_t>(ids.begin() + 1, ids.end()));
      }
    }
  }
}

// ---- Shuffling

TEST(Permutation, IsOne) {
  for (int64_t n = 1; n < 300; ++n) {
    const Permutation permutation(n, 5, 2);
    std::vector<bool> hit(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t to = permutation(i);
      ASSERT_TRUE(to >= 0 && to < n);
      ASSERT_FALSE(hit[static_cast<size_t>(to)]);
      hit[static_cast<size_t>(to)] = true;
    }
  }
  const int64_t huge = int64_t{1} << 62;
  EXPECT_LT(Permutation(huge, 1, 1)(huge - 1), huge);
  EXPECT_THROW(Permutation(0, 1, 1), Error);
  EXPECT_THROW(Permutation(-3, 1, 1), Error);
  for (const int64_t outside : {-1, 5, 7}) EXPECT_THROW(Permutation(5, 1, 1)(outside), Error) << outside;
}

TEST(Permutation, SmallOnesAreAllEquallyLikely) {
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t epoch = 0; epoch < 24'000; ++epoch) {
    const Permutation p(4, 9, epoch);
    ++counts[{p(0), p(1), p(2), p(3)}];
  }
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [permutation, count] : counts) EXPECT_NEAR(count, 1000, 160);  // five standard deviations
}

TEST(Permutation, LargeOnesHaveNoStructure) {
  constexpr int64_t kN = 10'007;
  const Permutation p(kN, 1, 0);
  int fixed = 0, ascents = 0, kept_neighbours = 0;
  for (int64_t i = 0; i < kN; ++i) {
    fixed += p(i) == i;
    if (i == 0) continue;
    ascents += p(i) > p(i - 1);
    kept_neighbours += std::abs(p(i) - p(i - 1)) == 1;
  }
  EXPECT_LT(fixed, 8);
  EXPECT_LT(kept_neighbours, 12);
  EXPECT_NEAR(ascents, kN / 2, 150);  // standard deviation: sqrt(n / 12) = 29
}

// ---- DataLoader

// Item i is (i, [i, i + 0.5]); may throw or dawdle.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::vector<Tensor> get(int64_t index) const override {
    ++gets;
    if (delay.count() > 0) std::this_thread::sleep_for(delay * (index % 3));
    if (index == bad_item) throw Error("item " + std::to_string(index) + " is bad");
    const auto value = static_cast<float>(index);
    const Dims shape = index == odd_shape ? Dims{1, 2} : Dims{2, 1};
    return {Tensor::scalar(index), Tensor::from<float>({value, value + 0.5f}, shape)};
  }
  mutable std::atomic<int> gets{0};
  std::chrono::microseconds delay{0};
  int64_t bad_item = -1, odd_shape = -1;

 private:
  int64_t size_;
};

std::vector<int64_t> items_of(const Batch& batch) { return batch[0].to_vector<int64_t>(); }
// One epoch's items, batch after batch; -1 ends a batch.
std::vector<int64_t> epoch_of(DataLoader& loader) {
  std::vector<int64_t> items;
  while (auto batch = loader.next()) {
    for (int64_t item : items_of(*batch)) items.push_back(item);
    items.push_back(-1);
  }
  return items;
}

// Item i is i and two numbers that it draws.
class Crops : public Dataset {
 public:
  int64_t size() const override { return 11; }
  std::vector<Tensor> get(int64_t index, Generator& random) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(index % 4 * 50));
    return {Tensor::scalar(index), Tensor::rand({2}, {}, &random)};
  }
  using Dataset::get;
};

TEST(DataLoader, ItemsDrawTheSameNumbersForAnyWorkersAndAfterResume) {
  const auto draws_of = [](DataLoader& loader, int epochs) {
    std::vector<std::vector<float>> draws;  // of each batch: indices and what they drew
    for (int epoch = 0; epoch < epochs; ++epoch)
      while (auto batch = loader.next()) {
        draws.push_back((*batch)[1].to_vector<float>());
        for (int64_t item : items_of(*batch)) draws.back().push_back(static_cast<float>(item));
      }
    return draws;
  };
  const auto crops = std::make_shared<Crops>();
  const auto options = [](int workers, uint64_t seed) {
    return DataLoaderOptions{.batch_size = 3, .shuffle = true, .seed = seed, .num_workers = workers};
  };
  DataLoader alone(crops, options(0, 7));
  const auto expected = draws_of(alone, 3);  // 4 batches an epoch
  for (int workers : {1, 3}) {
    DataLoader loader(crops, options(workers, 7));
    EXPECT_EQ(draws_of(loader, 3), expected) << workers;
    // As a resume does: from the middle of the second epoch.
    DataLoader resumed(crops, options(workers, 7));
    resumed.seek({1, 2});
    EXPECT_EQ(draws_of(resumed, 2), std::vector(expected.begin() + 6, expected.end())) << workers;
  }
  // A place that no 64-bit number of batches reaches.
  EXPECT_THROW(DataLoader(crops, options(1, 7)).seek({INT64_MAX / 4, 0}), Error);
  // Another epoch, item or seed draws other numbers.
  std::set<float> numbers;
  for (const auto& batch : expected) numbers.insert(batch.begin(), batch.end() - (batch.size() == 9 ? 3 : 2));
  EXPECT_EQ(numbers.size(), 3u * 11 * 2);
  DataLoader other(crops, options(0, 8));
  for (const auto& batch : draws_of(other, 3))
    for (size_t i = 0; i < batch.size() / 3 * 2; ++i) EXPECT_FALSE(numbers.contains(batch[i]));
  // Whoever asks for an item without a generator hears that it needs one.
  try {
    crops->get(0);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("generator"), std::string::npos) << e.what();
  }
}

TEST(DataLoader, BatchesInOrder) {
  DataLoader loader(std::make_shared<Numbers>(7), {.batch_size = 3});
  EXPECT_EQ(loader.size(), 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Batch first = *loader.next();
    ASSERT_EQ(first.size(), 2u);
    EXPECT_EQ(first[0].sizes(), (Dims{3}));
    EXPECT_EQ(first[1].sizes(), (Dims{3, 2, 1}));
    EXPECT_EQ(first[1].to_vector<float>(), (std::vector<float>{0, 0.5, 1, 1.5, 2, 2.5}));
    EXPECT_EQ(epoch_of(loader), (std::vector<int64_t>{3, 4, 5, -1, 6, -1}));
  }
  DataLoader whole(std::make_shared<Numbers>(7), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(whole.size(), 2);
  EXPECT_EQ(epoch_of(whole), (std::vector<int64_t>{0, 1, 2, -1, 3, 4, 5, -1}));
  for (int workers : {0, 2}) {
    DataLoader none(std::make_shared<Numbers>(0), {.num_workers = workers});
    EXPECT_FALSE(none.next());
    EXPECT_FALSE(none.next());
  }
}

TEST(DataLoader, SameOrderWhateverTheWorkers) {
  const auto epochs = [](int workers, int prefetch) {
    auto numbers = std::make_shared<Numbers>(50);
    numbers->delay = std::chrono::microseconds(50);
    DataLoader loader(numbers,
                      {.batch_size = 4, .shuffle = true, .seed = 3, .num_workers = workers, .prefetch = prefetch});
    std::vector<std::vector<int64_t>> all;
    for (int epoch = 0; epoch < 3; ++epoch) all.push_back(epoch_of(loader));
    return all;
  };
  const auto expected = epochs(0, 1);
  EXPECT_NE(expected[0], expected[1]);
  for (std::vector<int64_t> epoch : expected) {
    std::erase(epoch, -1);
    std::sort(epoch.begin(), epoch.end());
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(epoch[static_cast<size_t>(i)], i);
  }
  for (int workers : {1, 2, 4, 7})
    for (int prefetch : {1, 3}) EXPECT_EQ(epochs(workers, prefetch), expected);
}

TEST(DataLoader, ResumesFromAnyPosition) {
  const auto make = [](int workers) {
    return std::make_unique<DataLoader>(
        std::make_shared<Numbers>(23),
        DataLoaderOptions{.batch_size = 4, .shuffle = true, .seed = 8, .num_workers = workers});
  };
  for (int workers : {0, 3}) {
    auto loader = make(workers);
    std::vector<DataLoader::Position> positions;
    std::vector<std::vector<int64_t>> batches;
    while (loader->position().epoch < 3) {
      positions.push_back(loader->position());
      const auto batch = loader->next();
      batches.push_back(batch ? items_of(*batch) : std::vector<int64_t>{});
    }
    auto jumping = make(workers);
    for (size_t i = 0; i < positions.size(); ++i) {
      const size_t k = i * 7 % positions.size();
      auto resumed = make(workers);
      resumed->seek(positions[k]);
      jumping->seek(positions[k]);
      for (size_t j = k; j < std::min(k + 3, positions.size()); ++j) {
        EXPECT_EQ(resumed->position(), positions[j]);
        const auto batch = resumed->next(), other = jumping->next();
        EXPECT_EQ(batch ? items_of(*batch) : std::vector<int64_t>{}, batches[j]);
        EXPECT_EQ(other ? items_of(*other) : std::vector<int64_t>{}, batches[j]);
      }
    }
    EXPECT_THROW(loader->seek({0, 7}), Error);
    EXPECT_THROW(loader->seek({-1, 0}), Error);
  }
}

TEST(DataLoader, ExceptionsReachTheConsumerInOrder) {
  for (int workers : {0, 1, 3}) {
    auto numbers = std::make_shared<Numbers>(12);
    numbers->bad_item = 5;
    numbers->odd_shape = 10;
    DataLoader loader(numbers, {.batch_size = 2, .num_workers = workers});
    for (int epoch = 0; epoch < 2; ++epoch) {
      EXPECT_EQ(items_of(*loader.next()), (std::vector<int64_t>{0, 1}));
      EXPECT_EQ(items_of(*loader.next()), (std::vector<int64_t>{2, 3}));
      try {
        loader.next();
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "item 5 is bad");
      }
      EXPECT_EQ(items_of(*loader.next()), (std::vector<int64_t>{6, 7}));
      EXPECT_EQ(items_of(*loader.next()), (std::vector<int64_t>{8, 9}));
      const std::string differs = test::error_of([&] { loader.next(); });
      EXPECT_NE(differs.find("tensor 1 of item 11 is f32[2, 1]"), std::string::npos) << differs;
      EXPECT_FALSE(loader.next());
    }
  }
}

TEST(DataLoader, PrefetchIsBounded) {
  auto numbers = std::make_shared<Numbers>(1000);
  DataLoader loader(numbers, {.batch_size = 1, .num_workers = 2, .prefetch = 3});
  loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(numbers->gets.load(), 1 + 6);
  EXPECT_GE(numbers->gets.load(), 2);
}

TEST(DataLoader, StopsAtAnyTime) {
  for (int i = 0; i < 60; ++i) {
    auto numbers = std::make_shared<Numbers>(100);
    numbers->delay = std::chrono::microseconds(20);
    DataLoader loader(numbers, {.batch_size = 2, .shuffle = true, .num_workers = 1 + i % 4});
    for (int n = 0; n < i % 7; ++n) loader.next();
    if (i % 3 == 0) loader.seek({i, i % 50});
    if (i % 2 == 0) loader.next();
  }
}

TEST(DataLoader, RefusesNonsense) {
  const auto numbers = std::make_shared<Numbers>(3);
  EXPECT_THROW(DataLoader(nullptr, {}), Error);
  EXPECT_THROW(DataLoader(numbers, {.batch_size = 0}), Error);
  EXPECT_THROW(DataLoader(numbers, {.num_workers = -1}), Error);
  EXPECT_THROW(DataLoader(numbers, {.prefetch = 0}), Error);
}

TEST(DataLoader, OverTokenWindows) {
  const std::vector<int32_t> ids = some_ids(101);
  DataLoader loader(std::make_shared<TokenDataset>(TokenData::from(ids), 10), {.batch_size = 4, .num_workers = 2});
  const Batch batch = *loader.next();
  EXPECT_EQ(batch[0].sizes(), (Dims{4, 10}));
  EXPECT_EQ(batch[1].to_vector<int64_t>(), std::vector<int64_t>(ids.begin() + 1, ids.begin() + 41));
}

}  // namespace
}  // namespace rondo::data
