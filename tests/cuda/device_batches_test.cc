// Batches that are copied ahead to a CUDA device: the same bits in every order of its work, no wait and no pageable
// copy in a step, and what the fake driver says when a wait is forgotten.
#include "rondo/runtime/data/device_batches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/function_batches.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/optim/trainer_fixture.h"
#include "rondo/tests/watched_backend.h"

namespace rondo {
namespace {

using test::FakeCuda;
using test::Mistake;
using test::WatchedBackend;
using Position = data::BatchSource::Position;

constexpr int64_t kSize = 500;

data::Batch numbers(Position at) {
  Generator generator(static_cast<uint64_t>(at.epoch * 1000 + at.batch));
  return {Tensor::randn({kSize}, {kF32, kCPU}, &generator), Tensor::scalar(at.batch)};
}

// Sums up the batches of two epochs, as a step would use them: kernels on the compute stream.
std::string sum_of_batches(const fake_cuda::Options& options, bool ahead) {
  FakeCuda cuda(options);
  const cuda::Kernel kernel = cuda.kernel("axpy", test::axpy());
  const Tensor sum = Tensor::zeros({kSize}).to(cuda.device());
  data::FunctionBatches source(12, numbers);
  std::optional<data::DeviceBatches> batches;
  if (ahead) batches.emplace(source, cuda.device(), data::DeviceBatchesOptions{.across_epochs = options.seed % 2 == 0});
  data::BatchSource& read = ahead ? static_cast<data::BatchSource&>(*batches) : source;
  while (read.position().epoch < 2) {
    const std::optional<data::Batch> batch = read.next();
    if (!batch) continue;
    test::launch_axpy(kernel, sum, (*batch)[0].to(cuda.device()), 0.5f);
    if (ahead && options.seed % 3 == 0) batches->read_ahead();
  }
  return test::bytes_of(sum.to(kCPU));
}

TEST(CudaDeviceBatches, EveryOrderGivesTheSameBits) {
  const std::string expected = sum_of_batches({}, /*ahead=*/false);
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_TRUE(sum_of_batches({.seed = seed}, true) == expected) << seed;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_TRUE(sum_of_batches({.seed = seed, .early = 0}, true) == expected) << seed;
    EXPECT_TRUE(sum_of_batches({.seed = seed, .early = 1}, true) == expected) << seed;
    const test::Setting setting("RONDO_CUDA_CACHE", "0");
    EXPECT_TRUE(sum_of_batches({.seed = seed}, true) == expected) << seed;
  }
}

// A step makes its own kernel and reads one number back.
TEST(CudaDeviceBatches, AStepWaitsForNoCopy) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed});
    const cuda::Kernel kernel = cuda.kernel("axpy", test::axpy());
    const Tensor sum = Tensor::zeros({kSize}).to(cuda.device());
    synchronize(cuda.device());
    WatchedBackend watched(cuda.device());
    data::FunctionBatches source(100, numbers);
    data::DeviceBatches batches(source, cuda.device());
    for (int step = 0; step < 40; ++step) {
      const fake_cuda::Counts before = cuda->counts();
      const data::Batch batch = *batches.next();
      test::launch_axpy(kernel, sum, batch[0], 0.5f);
      batches.read_ahead();
      const fake_cuda::Counts after = cuda->counts();
      EXPECT_EQ(after.host_waits, before.host_waits);
      EXPECT_EQ(after.copies - before.copies, step == 0 ? 4 : 2) << "the next batch's two tensors";
      sum.slice(0, {0, 1}).to_vector<float>();
    }
    EXPECT_EQ(watched.counts().copies_in, 0);
    EXPECT_EQ(watched.counts().host_waits, 0);
    EXPECT_EQ(watched.counts().staged_on_compute, 0);
    EXPECT_EQ(watched.counts().staged_on_copy, 2 * 41);
    EXPECT_LE(watched.counts().most_staging, 3);
  }
}

TEST(CudaDeviceBatches, NoPageLockedMemory) {
  FakeCuda cuda;
  data::FunctionBatches source(10, numbers);
  data::DeviceBatches batches(source, cuda.device());
  synchronize(cuda.device());
  const auto expect_batch = [&](int64_t number) {
    EXPECT_EQ(test::bytes_of((*batches.next())[0].to(kCPU)), test::bytes_of(numbers({0, number})[0])) << number;
  };
  cuda->fail_allocations(1, 1, fake_cuda::kPinnedMemory);
  EXPECT_THROW(batches.next(), OutOfMemoryError);
  EXPECT_EQ(batches.position(), Position{});
  cuda->fail_allocations(2, 1, fake_cuda::kPinnedMemory);  // that of the batch ahead
  for (int64_t number = 0; number < 3; ++number) expect_batch(number);
}

// ---- Mistakes

class DeviceBatchesDeathTest : public ::testing::Test {
 protected:
  // A child that was forked may not use CUDA: each death test runs in a program of its own.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Some steps without these waits.
  static void run(Mistake mistake) {
    FakeCuda cuda({.early = 0});
    const cuda::Kernel kernel = cuda.kernel("axpy", test::axpy());
    const Tensor sum = Tensor::zeros({kSize}).to(cuda.device());
    synchronize(cuda.device());
    WatchedBackend watched(cuda.device(), mistake);
    data::FunctionBatches source(20, numbers);
    data::DeviceBatches batches(source, cuda.device());
    while (const auto batch = batches.next()) test::launch_axpy(kernel, sum, (*batch)[0], 0.5f);
    synchronize(cuda.device());
  }
  // A batch that is on its way and dropped; then its memory is used again.
  static void run_and_drop(Mistake mistake) {
    FakeCuda cuda({.early = 0});
    const cuda::Kernel kernel = cuda.kernel("axpy", test::axpy());
    synchronize(cuda.device());
    WatchedBackend watched(cuda.device(), mistake);
    data::FunctionBatches source(20, numbers);
    data::DeviceBatches batches(source, cuda.device());
    batches.next();
    batches.seek({0, 7});
    for (int i = 0; i < 4; ++i) {
      const Tensor other = test::empty(cuda.device(), kSize);
      test::launch_axpy(kernel, other, other, 0.5f);
    }
    synchronize(cuda.device());
  }
  // A program that ends in the middle: the staging memory goes while copies are queued.
  static void run_and_leave(Mistake mistake) {
    FakeCuda cuda({.early = 0});
    WatchedBackend watched(cuda.device(), mistake);
    data::FunctionBatches source(20, numbers);
    data::DeviceBatches batches(source, cuda.device());
    batches.next();
  }
};

TEST_F(DeviceBatchesDeathTest, WithoutMistakesNothingIsFound) {
  for (void (*const program)(Mistake) : {&run, &run_and_drop, &run_and_leave}) program(Mistake::kNone);
}
TEST_F(DeviceBatchesDeathTest, ACopyThatDoesNotWaitForCompute) {
  EXPECT_DEATH(run(Mistake::kCopyWaitsForNothing), "race: cuMemcpyHtoDAsync .* writes bytes that kernel axpy .* reads");
}
TEST_F(DeviceBatchesDeathTest, ComputeThatDoesNotWaitForTheCopy) {
  EXPECT_DEATH(run(Mistake::kComputeWaitsForNothing),
               "race: kernel axpy .* reads bytes that cuMemcpyHtoDAsync .* writes");
}
TEST_F(DeviceBatchesDeathTest, StagingThatIsWrittenBeforeItsCopyRan) {
  EXPECT_DEATH(run(Mistake::kStagingIsFreeAtOnce), "page-locked memory was changed before the copy has read it");
}
TEST_F(DeviceBatchesDeathTest, StagingThatIsFreedBeforeItsCopyRan) {
  EXPECT_DEATH(run_and_leave(Mistake::kStagingIsFreeAtOnce),
               "cuMemFreeHost: freed while cuMemcpyHtoDAsync .* may still");
}
TEST_F(DeviceBatchesDeathTest, ADroppedBatchThatIsStillOnItsWay) {
  EXPECT_DEATH(run_and_drop(Mistake::kComputeWaitsForNothing),
               "race: kernel axpy .* writes bytes that cuMemcpyHtoDAsync .* writes");
}

// ---- Trainer

using namespace rondo::optim;
using namespace rondo::optim::test;

const Variant kVariant{.dropout = 0.2, .workers = 0};

TrainerOptions trainer_options() {
  return {.max_steps = 7, .gradient_accumulation_steps = 3, .max_grad_norm = 0.5, .eval_steps = 3, .seed = 77};
}

// The same steps by the loop that reads each batch when it needs it. 8 batches an epoch: 3 + 3 + 2.
std::map<int64_t, double> losses_of_plain_loop() {
  SmallRun plain(kVariant, {});
  plain.model.train();
  std::map<int64_t, double> losses;
  data::BatchSource& source = *plain.train_data;
  const Device device = plain.optimizer->device();
  for (int64_t step = 0; step < 7; ++step) {
    std::vector<data::Batch> batches;
    std::vector<int64_t> targets;
    while (batches.size() < 3) {
      std::optional<data::Batch> batch = source.next();
      if (!batch && !batches.empty()) break;
      if (!batch) continue;
      targets.push_back(unmasked_targets(*batch));
      batches.push_back(*std::move(batch));
    }
    int64_t all = 0;
    for (const int64_t n : targets) all += n;
    default_generator().set_state(77, static_cast<uint64_t>(step) << 32);
    double mean = 0;
    std::vector<Tensor> parts;
    for (size_t i = 0; i < batches.size(); ++i) {
      const double share = static_cast<double>(targets[i]) / static_cast<double>(all);
      const Tensor loss = plain.model.loss(batches[i][0].to(device), batches[i][1].to(device));
      (loss * share).backward();
      mean += share * loss.item();
    }
    plain.optimizer->step({.max_norm = 0.5});
    plain.optimizer->zero_grad();
    losses[step + 1] = mean;
  }
  return losses;
}

TEST(CudaDeviceBatches, TrainerHasThePlainLoopsBits) {
  std::map<int64_t, double> expected;
  {
    FakeCuda cuda({.seed = 1});
    const DeviceScope scope(cuda.device());
    expected = losses_of_plain_loop();
  }
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    FakeCuda cuda({.seed = seed});
    const DeviceScope scope(cuda.device());
    Variant variant = kVariant;
    variant.workers = seed % 2 == 0 ? 2 : 0;
    SmallRun run(variant, trainer_options());
    run.trainer->train();
    EXPECT_EQ(run.notes.losses, expected) << seed;
    EXPECT_EQ(run.train_data->position(), (Position{2, 3})) << "what was read ahead does not count";
  }
}

// In the middle of an epoch, in another order of the device's work.
TEST(CudaDeviceBatches, TrainerResumesBitForBit) {
  const TempFolder folder;
  Notes whole;
  {
    FakeCuda cuda({.seed = 5});
    const DeviceScope scope(cuda.device());
    SmallRun run(kVariant, trainer_options());
    run.trainer->train();
    whole = run.notes;
  }
  for (int64_t step = 0; step < 7; ++step) {
    FakeCuda cuda({.seed = 6 + static_cast<uint64_t>(step)});
    const DeviceScope scope(cuda.device());
    TrainerOptions options = trainer_options();
    options.output_dir = folder.path();
    options.save_steps = 1;
    SmallRun run(kVariant, options);
    EXPECT_EQ(run.trainer->resume_from_checkpoint().has_value(), step > 0);
    int64_t micro_steps = 0;
    run.notes.each_micro_step = [&](const Progress& now) {
      if (now.step > step && ++micro_steps == 2) throw Error("killed");
    };
    EXPECT_EQ(error_of([&] { run.trainer->train(); }), step < 6 ? "killed" : "");
    EXPECT_TRUE(run.notes.losses.contains(step + 1));
    expect_part_of(run.notes, whole);
  }
}

// From the end of a step to the end of the next one's backward passes. (The optimizer then copies its tables and
// scalars, some hundred bytes, which the driver's staging takes at once.)
TEST(CudaDeviceBatches, TrainersStepsMakeNoPageableCopyAndNoWait) {
  FakeCuda cuda({.seed = 2});
  const DeviceScope scope(cuda.device());
  SmallRun run({}, {.max_steps = 20});
  // The fixture's items are made on the default device: the data of this test is the host's.
  std::vector<data::Batch> host;
  while (auto batch = run.train_data->next()) host.push_back(*std::move(batch));
  ListSource source(host);
  const auto loss = [&](const data::Batch& b) { return run.model.loss(b[0], b[1]); };
  Trainer trainer(run.model, *run.optimizer, loss, source,
                  {.max_steps = 20, .gradient_accumulation_steps = 2, .count_targets = unmasked_targets});
  WatchedBackend watched(cuda.device());
  struct Seen {
    int64_t copies_in = 0, copies_out = 0, waits = 0, driver_waits = 0, staged = 0;
  } last;
  const auto seen = [&] {
    const WatchedBackend::Counts& c = watched.counts();
    return Seen{c.copies_in, c.copies_out, c.host_waits, cuda->counts().host_waits, c.staged_on_copy};
  };
  Notes notes;
  notes.each_micro_step = [&](const Progress& progress) {
    const Seen now = seen();
    if (progress.step >= 3) {  // before that, kernels are compiled and measured
      EXPECT_EQ(now.copies_in, last.copies_in) << progress.step;
      EXPECT_EQ(now.copies_out, last.copies_out) << progress.step;
      EXPECT_EQ(now.waits, last.waits) << progress.step;
      EXPECT_EQ(now.driver_waits, last.driver_waits) << progress.step;
      EXPECT_EQ(now.staged, std::min<int64_t>(last.staged + 2, 2 * 41)) << progress.step;
    }
    last = now;
  };
  notes.each_step = [&](const Progress&) { last = seen(); };
  trainer.add_callback(notes);
  trainer.train();
  EXPECT_EQ(notes.losses.size(), 20u);
  EXPECT_EQ(watched.counts().staged_on_compute, 0);
  EXPECT_EQ(watched.counts().staged_on_copy, 2 * 41) << "the first batch behind the last step's is on its way";
  EXPECT_EQ(source.position(), (Position{4, 8})) << "8 batches an epoch";
}

}  // namespace
}  // namespace rondo
