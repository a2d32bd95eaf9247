// Batches on a device, a batch ahead: the source's batches and positions, what nobody waits for, and what the fake
// device shows when a wait is forgotten.
#include "rondo/runtime/data/device_batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/runtime/data/function_batches.h"
#include "rondo/runtime/data/staged_copies.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/watched_backend.h"

namespace rondo::data {
namespace {

using test::error_of;
using test::FakeDevice;
using test::Mistake;
using test::same_bits;
using test::WatchedBackend;
using Position = BatchSource::Position;

class DeviceBatchesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::test_device() != kCPU) GTEST_SKIP() << "makes fake devices of its own";
  }
};

// Item i is i, and 40 floats that begin with it. It may throw, once or always.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  using Dataset::get;
  std::vector<Tensor> get(int64_t index) const override {
    ++gets;
    if (index == bad_item && failures-- > 0) throw Error("item " + std::to_string(index) + " is bad");
    std::vector<float> floats(40);
    std::iota(floats.begin(), floats.end(), static_cast<float>(index));
    return {Tensor::scalar(index), Tensor::from(floats, {5, 8})};
  }
  mutable std::atomic<int> gets{0};
  mutable std::atomic<int> failures{INT32_MAX};
  int64_t bad_item = -1;

 private:
  const int64_t size_;
};

std::unique_ptr<DataLoader> loader_of(int64_t items, int workers = 0) {
  return std::make_unique<DataLoader>(
      std::make_shared<Numbers>(items),
      DataLoaderOptions{.batch_size = 4, .shuffle = true, .seed = 8, .num_workers = workers});
}

struct Read {
  Position at;
  std::optional<Batch> batch;  // in host memory
};
void expect_same(const std::optional<Batch>& got, const std::optional<Batch>& expected) {
  ASSERT_EQ(got.has_value(), expected.has_value());
  if (!got) return;
  ASSERT_EQ(got->size(), expected->size());
  for (size_t i = 0; i < got->size(); ++i) EXPECT_TRUE(same_bits((*got)[i].to(kCPU), (*expected)[i]));
}
std::vector<Read> epochs_of(BatchSource& source, int64_t epochs) {
  std::vector<Read> reads;
  while (source.position().epoch < epochs) {
    const Position at = source.position();
    reads.push_back({at, source.next()});
  }
  return reads;
}

// Work that is enqueued after a batch is used again for the next one's memory.
Tensor used(const Batch& batch) { return ops::sum(batch[1] * 3.0) + ops::sum(batch[0].to(kF32)); }

// ---- The same batches

TEST_F(DeviceBatchesTest, AreTheSourcesInEveryOrderOfTheDevicesWork) {
  const std::vector<Read> expected = epochs_of(*loader_of(23), 3);
  for (uint64_t seed = 0; seed < 24; ++seed) {
    FakeDevice fake({.seed = seed, .early = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 0.02 : 0.7});
    const auto loader = loader_of(23, seed % 2 == 0 ? 0 : 2);
    DeviceBatches batches(*loader, fake.device(), {.across_epochs = seed % 4 < 2});
    std::vector<Tensor> sums;
    std::vector<double> host_sums;
    for (const Read& read : expected) {
      ASSERT_EQ(batches.position(), read.at);
      const std::optional<Batch> batch = batches.next();
      ASSERT_EQ(batch.has_value(), read.batch.has_value());
      if (!batch) continue;
      EXPECT_EQ((*batch)[1].device(), fake.device());
      sums.push_back(used(*batch));
      host_sums.push_back(used(*read.batch).item());
      if (seed % 5 == 0) batches.read_ahead(1 + static_cast<int64_t>(seed) % 3);
      if (seed % 7 == 0) expect_same(batch, read.batch);
    }
    for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i].item(), host_sums[i]) << seed << ", batch " << i;
  }
}

TEST_F(DeviceBatchesTest, OverEverySource) {
  auto examples = std::make_shared<ExampleSet>();
  for (int32_t i = 0; i < 40; ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(2 + i % 9), i);
    examples->add({.ids = ids, .targets = std::vector<bool>(ids.size(), true)});
  }
  std::vector<int32_t> ids(500);
  std::iota(ids.begin(), ids.end(), 0);
  const TokenDataset windows(TokenData::from(ids), 16);
  const auto sample = [&](Position at) -> Batch {
    const TokenBatch batch = windows.sample(3, 5, at.epoch * 100 + at.batch);
    return {batch.x, batch.y};
  };
  for (const bool packed : {false, true})
    for (uint64_t seed = 0; seed < 4; ++seed) {
      FakeDevice fake({.seed = seed});
      const auto make = [&]() -> std::vector<std::unique_ptr<BatchSource>> {
        std::vector<std::unique_ptr<BatchSource>> sources;
        sources.push_back(std::make_unique<ExampleBatches>(
            examples, ExampleBatchesOptions{.batch_size = 3, .seed = 2, .pack = packed}));
        sources.push_back(std::make_unique<FunctionBatches>(6, sample));
        return sources;
      };
      const auto host = make(), ahead = make();
      for (size_t i = 0; i < host.size(); ++i) {
        DeviceBatches batches(*ahead[i], fake.device(), {.across_epochs = true});
        EXPECT_EQ(batches.size(), host[i]->size());
        EXPECT_EQ(batches.fingerprint(), host[i]->fingerprint());
        for (const Read& read : epochs_of(*host[i], 3)) {
          EXPECT_EQ(batches.position(), read.at);
          expect_same(batches.next(), read.batch);
        }
      }
    }
}

// What cannot go through staging memory, and odd shapes.
TEST_F(DeviceBatchesTest, TensorsOfEveryKind) {
  FakeDevice fake;
  const Tensor there = Tensor::arange(5).to(fake.device());
  const Tensor leaf = Tensor::ones({3}).requires_grad_();
  const Tensor table = Tensor::arange(24).view({4, 6});
  const Batch host = {Tensor::scalar(7.0),
                      Tensor::empty({0, 3}),
                      table.t(),
                      ops::slice(table, 1, {1, 4}),
                      there,
                      leaf,
                      Tensor::ones({3}, {kBool}),
                      Tensor::full({2, 2}, 1.5, {kBF16})};
  FunctionBatches source(4, [&](Position) { return host; });
  DeviceBatches batches(source, fake.device());
  for (int n = 0; n < 3; ++n) {
    const Batch batch = *batches.next();
    for (size_t i = 0; i < host.size(); ++i) {
      EXPECT_EQ(batch[i].device(), fake.device());
      EXPECT_TRUE(same_bits(batch[i].detach().to(kCPU), host[i].detach().to(kCPU))) << i;
    }
    EXPECT_TRUE(batch[4].is_same(there));
    ops::sum(batch[5]).backward();
  }
  EXPECT_EQ(leaf.grad().to_vector<float>(), (std::vector<float>{3, 3, 3}));
}

// ---- Positions

TEST_F(DeviceBatchesTest, ResumeFromAnyPosition) {
  for (const int workers : {0, 2})
    for (const bool across : {false, true}) {
      FakeDevice fake({.seed = 3});
      const std::vector<Read> expected = epochs_of(*loader_of(23), 3);
      const auto jumping_loader = loader_of(23, workers);
      DeviceBatches jumping(*jumping_loader, fake.device(), {.across_epochs = across});
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t k = i * 7 % expected.size();
        const auto loader = loader_of(23, workers);
        {
          DeviceBatches resumed(*loader, fake.device(), {.across_epochs = across});
          resumed.seek(expected[k].at);
          jumping.seek(expected[k].at);
          for (size_t j = k; j < std::min(k + 3, expected.size()); ++j) {
            ASSERT_EQ(resumed.position(), expected[j].at);
            expect_same(resumed.next(), expected[j].batch);
            expect_same(jumping.next(), expected[j].batch);
            resumed.read_ahead(3);
          }
        }
        // What was read ahead and not returned does not count.
        const size_t now = std::min(k + 3, expected.size());
        EXPECT_EQ(loader->position(), now < expected.size() ? expected[now].at : (Position{3, 0}));
      }
      EXPECT_THROW(jumping.seek({0, 7}), Error);
      EXPECT_THROW(jumping.seek({-1, 0}), Error);
      EXPECT_NE(error_of([&] { jumping.peek(-1); }).find("-1"), std::string::npos);
    }
}

TEST_F(DeviceBatchesTest, ABadSeekChangesNothing) {
  FakeDevice fake;
  const auto loader = loader_of(23);
  const std::vector<Read> expected = epochs_of(*loader_of(23), 1);
  DeviceBatches batches(*loader, fake.device());
  batches.next();
  EXPECT_THROW(batches.seek({0, 99}), Error);
  EXPECT_EQ(batches.position(), expected[1].at);
  expect_same(batches.next(), expected[1].batch);
}

TEST_F(DeviceBatchesTest, PeekShowsTheHostsBatches) {
  for (const bool on_cpu : {false, true}) {
    FakeDevice fake;
    const auto loader = loader_of(23);
    const std::vector<Read> expected = epochs_of(*loader_of(23), 2);
    DeviceBatches batches(*loader, on_cpu ? kCPU : fake.device(), {.across_epochs = true});
    for (size_t i = 0; i + 8 < expected.size(); ++i) {
      for (size_t k : {7u, 0u, 3u}) {
        const std::optional<Batch>& seen = batches.peek(static_cast<int64_t>(k));
        EXPECT_TRUE(!seen || (*seen)[1].device() == kCPU);
        expect_same(seen, expected[i + k].batch);
      }
      EXPECT_EQ(batches.position(), expected[i].at);
      expect_same(batches.next(), expected[i].batch);
    }
  }
}

// How far a source is read: a batch ahead, not into the next epoch unless that is wanted.
TEST_F(DeviceBatchesTest, ReadsOneBatchAhead) {
  for (const bool across : {false, true}) {
    FakeDevice fake;
    std::vector<Position> made;
    FunctionBatches source(3, [&](Position at) -> Batch {
      made.push_back(at);
      return {Tensor::scalar(at.batch)};
    });
    DeviceBatches batches(source, fake.device(), {.across_epochs = across});
    batches.next();
    EXPECT_EQ(made.size(), 2u);
    batches.read_ahead();
    EXPECT_EQ(made.size(), 3u) << "the copy of one is under way, one is read";
    batches.next(), batches.read_ahead(), batches.next(), batches.read_ahead();
    EXPECT_EQ(made.size(), across ? 5u : 3u);
    EXPECT_FALSE(batches.next());
    EXPECT_EQ(made.size(), across ? 5u : 3u);
    batches.next();
    EXPECT_EQ(made.size(), across ? 5u : 5u);
    EXPECT_EQ(made.back(), (Position{1, 1}));
  }
  FakeDevice fake;
  FunctionBatches nothing(0, [](Position) { return Batch{}; });
  DeviceBatches none(nothing, fake.device(), {.across_epochs = true});
  EXPECT_FALSE(none.next());
  none.read_ahead(5);
  EXPECT_FALSE(none.next());
}

// The numbers of the step beside it are its own.
TEST_F(DeviceBatchesTest, SourcesThatDrawChangeNothingOutside) {
  FakeDevice fake;
  FunctionBatches source(20, [](Position) -> Batch { return {Tensor::rand({4}, {kF32, kCPU})}; });
  const auto draws_of = [&](uint64_t seed) {
    source.seek({});
    manual_seed(seed);
    DeviceBatches batches(source, fake.device());
    std::vector<std::vector<float>> draws;
    for (int i = 0; i < 10; ++i) {
      const uint64_t offset = default_generator().offset();
      draws.push_back((*batches.next())[0].to_vector<float>());
      batches.read_ahead(3);
      EXPECT_EQ(default_generator().offset(), offset);
      EXPECT_EQ(default_generator().seed(), seed);
    }
    return draws;
  };
  const auto first = draws_of(5);
  for (size_t i = 1; i < first.size(); ++i) EXPECT_NE(first[i], first[i - 1]);
  EXPECT_EQ(draws_of(5), first);
  EXPECT_NE(draws_of(6), first);
  manual_seed(5);
  EXPECT_NE(Tensor::rand({4}, {kF32, kCPU}).to_vector<float>(), first[0]);
}

// ---- Errors

TEST_F(DeviceBatchesTest, ErrorsOfTheDatasetSurfaceAtTheirBatch) {
  for (const bool on_cpu : {false, true})
    for (const int workers : {0, 2}) {
      FakeDevice fake;
      auto numbers = std::make_shared<Numbers>(12);
      numbers->bad_item = 5;
      DataLoader loader(numbers, {.batch_size = 2, .num_workers = workers});
      DeviceBatches batches(loader, on_cpu ? kCPU : fake.device(), {.across_epochs = true});
      const auto items = [&] { return (*batches.next())[0].to_vector<int64_t>(); };
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        EXPECT_EQ(items(), (std::vector<int64_t>{0, 1}));
        batches.read_ahead(4);
        EXPECT_EQ(items(), (std::vector<int64_t>{2, 3}));
        EXPECT_EQ(batches.position(), (Position{epoch, 2}));
        EXPECT_EQ(error_of([&] { batches.peek(); }), "item 5 is bad");
        EXPECT_EQ(error_of([&] { batches.next(); }), "item 5 is bad");
        EXPECT_EQ(items(), (std::vector<int64_t>{6, 7}));
        for (int i = 0; i < 2; ++i) EXPECT_TRUE(batches.next());
        EXPECT_FALSE(batches.next());
      }
    }
}

// A file that cannot be read for a while: who seeks back reads it again.
TEST_F(DeviceBatchesTest, SeekForgetsAnError) {
  FakeDevice fake;
  auto numbers = std::make_shared<Numbers>(8);
  numbers->bad_item = 3;
  numbers->failures = 1;
  DataLoader loader(numbers, {.batch_size = 2});
  DeviceBatches batches(loader, fake.device());
  batches.next();
  EXPECT_EQ(error_of([&] { batches.next(); }), "item 3 is bad");
  batches.seek({0, 1});
  EXPECT_EQ((*batches.next())[0].to_vector<int64_t>(), (std::vector<int64_t>{2, 3}));
}

// No memory for the copy ahead: the batch in hand comes all the same. Its own next() throws if there is none then.
TEST_F(DeviceBatchesTest, NoMemoryForACopyAhead) {
  FakeDevice fake;
  const auto loader = loader_of(23);
  const std::vector<Read> expected = epochs_of(*loader_of(23), 1);
  DeviceBatches batches(*loader, fake.device());
  expect_same(batches.next(), expected[0].batch);
  fake.fail_allocation(1);
  {
    const std::optional<Batch> batch = batches.next();
    fake.fail_allocation(2);  // the second tensor
    EXPECT_THROW(batches.next(), OutOfMemoryError);
    expect_same(batch, expected[1].batch);
  }
  EXPECT_EQ(batches.position(), expected[2].at);
  for (size_t i = 2; i < expected.size(); ++i) expect_same(batches.next(), expected[i].batch);
}

// A loop that catches the error goes on with the next batch.
TEST_F(DeviceBatchesTest, ABatchThatCannotBeMovedIsSkipped) {
  for (const bool on_cpu : {false, true}) {
    FakeDevice fake;
    FunctionBatches source(5, [](Position at) -> Batch {
      const bool is_bad = at.batch == 1 || at.batch == 4;
      return {Tensor::full({3}, static_cast<double>(at.batch)), is_bad ? Tensor() : Tensor::ones({3})};
    });
    const Device device = on_cpu ? kCPU : fake.device();
    DeviceBatches batches(source, device, {.across_epochs = true});
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_EQ(batches.position(), (Position{epoch, i}));
        if (i == 0) batches.read_ahead();
        if (i == 1 || i == 4) {
          EXPECT_EQ(error_of([&] { batches.next(); }),
                    "DeviceBatches: tensor 1 of batch " + std::to_string(i) + " of epoch " + std::to_string(epoch) +
                        " cannot be moved to " + to_string(device) + ": it is undefined");
        } else {
          EXPECT_EQ((*batches.next())[0].to_vector<float>()[2], static_cast<float>(i));
        }
        if (i == 4) {
          EXPECT_FALSE(batches.next());
        }
      }
  }
}

TEST_F(DeviceBatchesTest, RefusesADeviceThatIsNotThere) {
  FakeDevice fake;
  const auto loader = loader_of(4);
  EXPECT_NE(error_of([&] { DeviceBatches(*loader, fake.device(3)); }).find("no device fake:3"), std::string::npos);
}

// ---- Nobody waits, and little memory is taken

TEST_F(DeviceBatchesTest, AStepWaitsForNoCopy) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    FakeDevice fake({.seed = seed});
    WatchedBackend watched(fake.device());
    const auto loader = loader_of(400);
    DeviceBatches batches(*loader, fake.device());
    const Tensor weight = Tensor::full({40}, 0.5).to(fake.device());
    watched.reset();
    const test::FakeDeviceCounts before = fake.counts();
    for (int step = 1; step <= 50; ++step) {
      const Batch batch = *batches.next();
      const Tensor loss = ops::sum(ops::reshape(batch[1], {-1, 40}) * weight);
      batches.read_ahead();
      // Everything of the step is enqueued, and the next batch is on its way.
      EXPECT_EQ(fake.counts().host_waits - before.host_waits, step - 1);
      loss.item();
    }
    EXPECT_EQ(watched.counts().copies_in, 0);
    EXPECT_EQ(fake.counts().copies_in, before.copies_in);
    EXPECT_EQ(watched.counts().copies_out, 50) << "the losses";
    EXPECT_EQ(watched.counts().host_waits, 0);
    EXPECT_EQ(watched.counts().staged_on_compute, 0);
    EXPECT_EQ(watched.counts().staged_on_copy, 2 * 51) << "the 51st batch is on its way";
    EXPECT_EQ(watched.counts().staged_bytes, 51 * 4 * (8 + 40 * 4));
    EXPECT_LE(watched.counts().most_staging, 3);
  }
}

// A host that never waits for results is as many batches ahead as there are slots.
TEST_F(DeviceBatchesTest, AHostThatRunsAhead) {
  FakeDevice fake({.seed = 1, .early = 0});
  const auto loader = loader_of(200);
  const std::vector<Read> expected = epochs_of(*loader_of(200), 1);
  std::vector<Tensor> sums;
  WatchedBackend watched(fake.device());
  {
    DeviceBatches batches(*loader, fake.device());
    while (const auto batch = batches.next()) sums.push_back(used(*batch));
    EXPECT_GT(watched.counts().host_waits, 0);
    EXPECT_LE(watched.counts().most_staging, static_cast<int64_t>(StagedCopies::kSlots));
  }
  EXPECT_EQ(watched.counts().staging, 0) << "page-locked memory is left";
  ASSERT_EQ(sums.size(), 50u);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i].item(), used(*expected[i].batch).item()) << i;
}

TEST_F(DeviceBatchesTest, TwoBatchesOfDeviceMemory) {
  FakeDevice fake;
  constexpr int64_t kBytes = int64_t{4} << 20;
  FunctionBatches source(30, [](Position at) -> Batch {
    return {Tensor::full({kBytes / 4}, static_cast<double>(at.batch), {kF32, kCPU})};
  });
  DeviceBatches batches(source, fake.device());
  while (const auto batch = batches.next()) {
    batches.read_ahead();
    (*batch)[0].sum().item();
  }
  const AllocatorStats stats = memory::stats(fake.device());
  EXPECT_GE(stats.peak_bytes, 2 * kBytes);
  EXPECT_LT(stats.peak_bytes, 2 * kBytes + 4096);
  EXPECT_EQ(stats.bytes_in_use, 0);
}

// Batches that grow and shrink use staging memory of the largest.
TEST_F(DeviceBatchesTest, BatchesOfManySizes) {
  FakeDevice fake({.seed = 9});
  WatchedBackend watched(fake.device());
  FunctionBatches source(40, [](Position at) -> Batch {
    return {Tensor::full({1 + at.batch * 37 % 200}, static_cast<double>(at.batch), {kF32, kCPU})};
  });
  DeviceBatches batches(source, fake.device());
  for (int64_t n = 0; n < 40; ++n) {
    const Batch batch = *batches.next();
    EXPECT_EQ(batch[0].sum().item(), static_cast<double>(n * (1 + n * 37 % 200))) << n;
  }
  EXPECT_LE(watched.counts().staging, 3);
}

TEST_F(DeviceBatchesTest, TheCpuCopiesNothingAndReadsNothingAhead) {
  std::vector<Tensor> made;
  FunctionBatches source(5, [&](Position) -> Batch {
    made.push_back(Tensor::ones({3}));
    return {made.back()};
  });
  DeviceBatches batches(source, kCPU, {.across_epochs = true});
  for (int64_t n = 1; n <= 5; ++n) {
    const Batch batch = *batches.next();
    batches.read_ahead(4);
    EXPECT_EQ(made.size(), static_cast<size_t>(n));
    EXPECT_TRUE(batch[0].is_same(made.back()));
    EXPECT_EQ(source.position(), (Position{0, n}));
  }
}

// ---- Mistakes: with a wait left out some order of the work gives other numbers

bool is_right(uint64_t seed, Mistake mistake) {
  FakeDevice fake({.seed = seed, .early = 0.3});
  WatchedBackend watched(fake.device(), mistake);
  FunctionBatches source(30, [](Position at) -> Batch {
    return {Tensor::full({100}, static_cast<double>(at.batch), {kF32, kCPU})};
  });
  double sum = 0;
  Tensor total = Tensor::zeros({100}, {kF32, fake.device()});
  {
    DeviceBatches batches(source, fake.device());
    while (const auto batch = batches.next()) total.add_((*batch)[0] * 2.0);
    // Before the staging memory goes: this fake would only notice that under a sanitizer.
    sum = total.sum().item();
    synchronize(fake.device());
  }
  return sum == 2 * 100 * (29 * 30 / 2);
}

TEST_F(DeviceBatchesTest, EveryForgottenWaitShows) {
  const auto wrong = [](Mistake mistake) {
    int n = 0;
    for (uint64_t seed = 0; seed < 10; ++seed) n += !is_right(seed, mistake);
    return n;
  };
  EXPECT_EQ(wrong(Mistake::kNone), 0);
  EXPECT_GT(wrong(Mistake::kCopyWaitsForNothing), 0);
  EXPECT_GT(wrong(Mistake::kComputeWaitsForNothing), 0);
  EXPECT_GT(wrong(Mistake::kStagingIsFreeAtOnce), 0);
}

// ---- FunctionBatches

TEST(FunctionBatches, IsASource) {
  FunctionBatches source(3, [](Position at) -> Batch {
    if (at.batch == 1) throw Error("bad");
    return {Tensor::scalar(at.epoch * 10 + at.batch)};
  });
  EXPECT_EQ(source.size(), 3);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ((*source.next())[0].to(kCPU).data<int64_t>()[0], epoch * 10);
    EXPECT_THROW(source.next(), Error);
    EXPECT_EQ(source.position(), (Position{epoch, 2})) << "the batch is skipped";
    EXPECT_EQ((*source.next())[0].to(kCPU).data<int64_t>()[0], epoch * 10 + 2);
    EXPECT_FALSE(source.next());
  }
  source.seek({0, 3});
  EXPECT_FALSE(source.next());
  EXPECT_EQ(source.position(), (Position{1, 0}));
  for (const Position bad : {Position{0, 4}, {0, -1}, {-1, 0}}) EXPECT_THROW(source.seek(bad), Error);
  EXPECT_THROW(FunctionBatches(-1, [](Position) { return Batch{}; }), Error);
  EXPECT_THROW(FunctionBatches(1, nullptr), Error);
}

}  // namespace
}  // namespace rondo::data
