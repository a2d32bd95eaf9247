// optim::Trainer over several processes: the steps of one process with all the batches, wherever the job is cut,
// resumed or disturbed.
#include "rondo/dist/ddp/trainer_replicas.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/dist/groups/group_communicator.h"
#include "rondo/modules/layers/channel_norm.h"
#include "rondo/optim/sgd.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::dist {
namespace {

using namespace rondo::optim::test;
using optim::StopReason;
using optim::TrainerOptions;
using test::kPatient;
using test::run_ranks;

// What a rank of a job has, in f64: sums in another order then differ by 1e-15.
struct RankRun {
  RankRun(const std::shared_ptr<ProcessGroup>& group, TrainerOptions options, int workers = 0, bool sharded = false)
      : model({.vocab_size = kVocab, .block_size = kLength, .n_layer = 2, .n_head = 2, .n_embd = 16}, 3),
        train_data(std::make_shared<MaskedRows>(22),
                   {.batch_size = 3, .shuffle = true, .seed = 9, .num_workers = workers}),
        eval_data(std::make_shared<MaskedRows>(11, 2), {.batch_size = 4}) {
    model.to(kF64);
    optimizer.emplace(model.parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    if (group != nullptr) {
      ddp.emplace(model, group, BucketOptions{.min_bytes = 1});
      if (sharded) shards.emplace(*ddp, *optimizer);
      replicas.emplace(*ddp, TrainerReplicasOptions{.check_parameters = true, .shards = sharded ? &*shards : nullptr});
      options.replicas = &*replicas;
    }
    options.count_targets = optim::unmasked_targets;
    trainer.emplace(
        model, *optimizer,
        [this](const data::Batch& batch) {
          if (before_loss) before_loss(batch);
          const Tensor loss = model.loss(batch[0], batch[1]);
          return factor == 1 ? loss : loss * factor;
        },
        train_data, eval_data, options);
    trainer->add_callback(notes);
  }
  nn::GPT2 model;
  data::DataLoader train_data, eval_data;
  std::optional<optim::AdamW> optimizer;
  std::optional<DistributedDataParallel> ddp;
  std::optional<ShardedOptimizer> shards;
  std::optional<TrainerReplicas> replicas;
  std::optional<optim::Trainer> trainer;
  Notes notes;
  std::function<void(const data::Batch&)> before_loss = nullptr;
  double factor = 1;
};

// Runs `fn` on every rank of a job, each with its own run. All must end without an error.
void with_runs(int n, const TrainerOptions& options, const std::function<void(RankRun&, int rank)>& fn, int workers = 0,
               bool sharded = false) {
  const std::vector<std::string> errors = run_ranks(n, [&](const Environment& e) {
    RankRun run(ProcessGroup::connect(e, {.timeout = kPatient}), options, workers, sharded);
    fn(run, e.rank);
  });
  for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

void expect_near(const std::map<int64_t, double>& some, const std::map<int64_t, double>& all, const char* what) {
  for (const auto& [step, value] : some) {
    ASSERT_TRUE(all.contains(step)) << what << " of step " << step;
    EXPECT_NEAR(value, all.at(step), 1e-11 * std::abs(all.at(step))) << what << " of step " << step;
  }
}
void expect_near(const Notes& part, const Notes& whole) {
  EXPECT_FALSE(part.losses.empty());
  expect_near(part.losses, whole.losses, "loss");
  expect_near(part.norms, whole.norms, "norm");
  expect_near(part.rates, whole.rates, "rate");
  expect_near(part.evals, whole.evals, "evaluation");
}

// A decreasing rate: its steps must be counted as one process counts them.
TrainerOptions options_of(int64_t accumulate) {
  return {.num_train_epochs = 3,
          .gradient_accumulation_steps = accumulate,
          .lr_schedules = {[](int64_t step) { return 1e-2 / static_cast<double>(1 + step); }},
          .logging_steps = 1,
          .save_steps = 0};
}

class ReplicasOf : public testing::TestWithParam<std::pair<int, bool>> {
 protected:
};

// 8 batches an epoch of different numbers of targets: with 3 ranks, and with 2 x 3, the last step of an epoch is
// smaller, and some ranks have no batch in it.
TEST_P(ReplicasOf, MakeTheStepsOfOneProcess) {
  const auto [n, sharded] = GetParam();
  for (const int64_t accumulate : {1, 2, 3}) {
    SCOPED_TRACE(accumulate);
    RankRun one(nullptr, options_of(n * accumulate));
    one.trainer->train();
    EXPECT_EQ(one.notes.evals.size(), 3u);  // at the end of each epoch
    std::mutex mutex;
    std::optional<Notes> first;
    with_runs(
        n, options_of(accumulate),
        [&](RankRun& run, int) {
          const optim::TrainResult result = run.trainer->train();
          EXPECT_EQ(result.reason, StopReason::kFinished);
          EXPECT_EQ(result.last.epoch, 3);
          const std::lock_guard lock(mutex);
          EXPECT_EQ(run.notes.losses.size(), one.notes.losses.size());
          EXPECT_EQ(run.notes.evals.size(), one.notes.evals.size());
          expect_near(run.notes, one.notes);
          if (first) expect_part_of(run.notes, *first);  // the same bits on every rank
          else first = run.notes;
        },
        /*workers=*/accumulate == 2 ? 2 : 0, sharded);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReplicasOf,
                         testing::Values(std::pair(2, false), std::pair(3, false), std::pair(4, false),
                                         std::pair(2, true), std::pair(3, true), std::pair(4, true)),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + (info.param.second ? "_sharded" : "");
                         });

// Ranks whose batches have no target, and a step that has none at all.
TEST(TrainerReplicasTest, BatchesWithoutTargetsCountNothing) {
  data::Batch none = masked_batch(0, 1);
  none[1] = Tensor::full({1, 4}, data::kIgnoreIndex, {kI64});
  const std::vector<data::Batch> batches = {none,
                                            masked_batch(0, 2),  // step 1: rank 0 has nothing to say
                                            masked_batch(1, 3),
                                            none,  // step 2: rank 1
                                            none,
                                            none,  // step 3: nobody
                                            masked_batch(0, 1),
                                            masked_batch(1, 4)};
  const auto train = [&](const std::shared_ptr<ProcessGroup>& group, int64_t accumulate) {
    manual_seed(1);
    Classifier net;
    net.to(kF64);
    std::optional<DistributedDataParallel> ddp;
    std::optional<TrainerReplicas> replicas;
    if (group != nullptr) replicas.emplace(ddp.emplace(net, group), TrainerReplicasOptions{.check_parameters = true});
    optim::SGD optimizer(net.parameters(), {.lr = 1});
    ListSource source(batches);
    optim::Trainer trainer(net, optimizer, [&](const data::Batch& b) { return net.loss(b); }, source,
                           {.max_steps = 4,
                            .gradient_accumulation_steps = accumulate,
                            .count_targets = optim::unmasked_targets,
                            .replicas = replicas ? &*replicas : nullptr});
    Notes notes;
    trainer.add_callback(notes);
    EXPECT_EQ(trainer.train().last.skipped_steps, 1);
    EXPECT_TRUE(std::isnan(notes.losses.at(3)));
    notes.losses.erase(3);
    notes.norms.erase(3);
    return notes;
  };
  const Notes one = train(nullptr, 2);
  const std::vector<std::string> errors = run_ranks(
      2, [&](const Environment& e) { expect_near(train(ProcessGroup::connect(e, {.timeout = kPatient}), 1), one); });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

// 5 batches an epoch: the last step of each has one, so other ranks run an empty one beside its synchronised BatchNorm.
TEST(TrainerReplicasTest, LayersThatWaitRunOnRanksWithoutABatch) {
  struct Net : nn::Module<Net> {
    nn::Linear in = child("in", 4, 6);
    nn::BatchNorm1d norm = child("norm", 6);
    nn::Linear out = child("out", 6, 1);
    Tensor forward(const Tensor& x) { return out(ops::relu(norm(in(x)))); }
  };
  const auto made = [] {
    manual_seed(1);
    auto net = std::make_unique<Net>();
    net->to(kF64);
    return net;
  };
  std::vector<data::Batch> batches;
  for (uint64_t i = 0; i < 5; ++i) {
    Generator random(i);
    const Tensor x = Tensor::randn({8, 4}, {kF64}, &random);
    batches.push_back({x, x.sum({1}, true)});
  }
  for (const auto& [ranks, accumulate] : {std::pair(2, 1), std::pair(4, 1), std::pair(2, 2)}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << accumulate << " batches a step");
    // One process, whose BatchNorm sees the batches of all ranks as one.
    const std::unique_ptr<Net> one = made();
    optim::SGD optimizer(one->parameters(), {.lr = 0.1});
    for (int epoch = 0; epoch < 2; ++epoch)
      for (size_t first = 0; first < batches.size();) {
        const size_t in_step = std::min(batches.size() - first, static_cast<size_t>(ranks * accumulate));
        const size_t end = first + in_step;
        while (first < end) {
          const size_t n = std::min(end - first, static_cast<size_t>(ranks));
          std::vector<Tensor> x, y;
          for (size_t i = 0; i < n; ++i) x.push_back(batches[first + i][0]), y.push_back(batches[first + i][1]);
          const double share = static_cast<double>(n) / static_cast<double>(in_step);
          (ops::mse_loss((*one)(ops::cat(x, 0)), ops::cat(y, 0)) * share).backward();
          first += n;
        }
        optimizer.step();
        optimizer.zero_grad();
      }
    const int64_t a = accumulate;
    const std::vector<std::string> errors = run_ranks(ranks, [&](const Environment& e) {
      const std::unique_ptr<Net> net = made();
      const std::shared_ptr<ProcessGroup> group = ProcessGroup::connect(e, {.timeout = kPatient});
      const auto statistics = convert_sync_batchnorm(*net, group);
      DistributedDataParallel ddp(*net, group);
      TrainerReplicas replicas(ddp, {.check_parameters = true});
      optim::SGD mine(net->parameters(), {.lr = 0.1});
      ListSource source(batches);
      optim::Trainer trainer(
          *net, mine, [&](const data::Batch& b) { return ops::mse_loss((*net)(b[0]), b[1]); }, source,
          {.num_train_epochs = 2, .gradient_accumulation_steps = a, .max_grad_norm = 0, .replicas = &replicas});
      EXPECT_FALSE(std::isnan(trainer.train().last.loss));
      const nn::StateDict got = net->state_dict(), want = one->state_dict();
      for (const auto& [key, value] : want) {
        if (key == "norm.num_batches_tracked") continue;
        EXPECT_TRUE(test::is_close(got.at(key), value, {.of_largest = 1e-10})) << key;
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks)));
  }
}

// Cuts a job of 2 x 2 batches a step in the middle of its second epoch.
void cut_job(const std::string& folder, bool sharded = false) {
  TrainerOptions options = options_of(2);
  options.output_dir = folder;
  const auto cut = [](RankRun& run, int rank) {
    // Step 3 of epochs with 2 steps. One rank is cancelled, and all end.
    run.notes.each_step = [&run, rank](const optim::Progress& now) {
      if (now.step == 3 && rank == 1) run.trainer->cancel();
    };
    const optim::TrainResult result = run.trainer->train();
    EXPECT_EQ(result.reason, StopReason::kCancelled);
    EXPECT_EQ(result.last.step, 3);
    EXPECT_EQ(run.notes.saved.empty(), rank != 0);  // rank 0 writes
    EXPECT_EQ(run.trainer->save_checkpoint().empty(), rank != 0);
  };
  with_runs(2, options, cut, /*workers=*/0, sharded);
}

// Steps of the same batches in the same order, on more or fewer ranks.
TEST(TrainerReplicasTest, AJobGoesOnOnAnotherNumberOfRanks) {
  RankRun undisturbed(nullptr, options_of(4));
  undisturbed.trainer->train();
  struct Case {
    int n;
    bool cut_sharded, sharded;
  };
  // A checkpoint holds the states of whole parameters, whoever had which part of them.
  for (const auto& [n, cut_sharded, sharded] :
       {Case{1, false, false}, Case{2, false, false}, Case{4, false, false}, Case{1, true, false}, Case{2, true, false},
        Case{2, true, true}, Case{4, true, true}, Case{4, false, true}}) {
    SCOPED_TRACE(testing::Message() << n << cut_sharded << sharded);
    const TempFolder folder;
    cut_job(folder / "run", cut_sharded);
    TrainerOptions options = options_of(4 / n);
    options.output_dir = folder / "run";
    const auto go_on = [&](RankRun& run) {
      EXPECT_EQ(run.trainer->resume_from_checkpoint()->step, 3);
      EXPECT_EQ(run.trainer->train().last.step, 6);
      EXPECT_EQ(run.notes.losses.size(), 3u);
      expect_near(run.notes, undisturbed.notes);
    };
    if (n > 1) {
      with_runs(
          n, options, [&](RankRun& run, int) { go_on(run); }, /*workers=*/0, sharded);
    } else {
      RankRun run(nullptr, options);
      go_on(run);
    }
  }
}

// The batches that a job trains on, by epoch and by the sum of their ids.
struct SeenBatches {
  std::mutex mutex;
  std::map<int64_t, std::multiset<double>> by_epoch;
  void watch(RankRun& run) {
    run.before_loss = [this, &run](const data::Batch& batch) {
      if (!run.model.is_training()) return;
      // The position is that of the next step: at an epoch's end it stands behind the last batch.
      const std::lock_guard lock(mutex);
      by_epoch[run.train_data.position().epoch].insert(batch[0].to(kF64).sum().item());
    };
  }
};

// With other steps every batch of an epoch is still read once, also by 3 ranks and after a second cut; epochs end where
// they should, and so does the run.
TEST(TrainerReplicasTest, OtherStepsReadEveryBatchOfAnEpochOnce) {
  SeenBatches expected;
  RankRun undisturbed(nullptr, options_of(4));
  expected.watch(undisturbed);
  undisturbed.trainer->train();
  ASSERT_EQ(expected.by_epoch.size(), 3u);

  const TempFolder folder;
  cut_job(folder / "run");  // after batch 4 of epoch 1
  SeenBatches seen;
  TrainerOptions options = options_of(1);
  options.output_dir = folder / "run";
  // 4 batches are left in epoch 1: steps of 3 and 1. Epoch 2: 3, 3, 2. The run is cut once more in between.
  with_runs(3, options, [&](RankRun& run, int) {
    seen.watch(run);
    ASSERT_TRUE(run.trainer->resume_from_checkpoint());
    EXPECT_EQ(run.trainer->progress().max_steps, 8);
    run.notes.each_step = [&run](const optim::Progress& now) {
      if (now.step == 6) run.trainer->cancel();
    };
    run.trainer->train();
    EXPECT_TRUE(run.notes.evals.contains(5));          // the end of epoch 1
    EXPECT_EQ(run.notes.rates.at(4), 1e-2 / (1 + 4));  // 4 of the 9 steps that 3 ranks make: 2 of 3 epochs less 2 steps
  });
  with_runs(3, options, [&](RankRun& run, int) {
    seen.watch(run);
    ASSERT_TRUE(run.trainer->resume_from_checkpoint());
    const optim::TrainResult result = run.trainer->train();
    EXPECT_EQ(result.last.step, 8);
    EXPECT_EQ(result.last.epoch, 3);
    EXPECT_TRUE(run.notes.evals.contains(8));
  });
  EXPECT_EQ(seen.by_epoch[2], expected.by_epoch[2]);
  EXPECT_EQ(seen.by_epoch[1].size(), 4u);
  for (const double batch : seen.by_epoch[1]) EXPECT_TRUE(expected.by_epoch[1].contains(batch));
}

TEST(TrainerReplicasTest, ANonFiniteGradientOfOneRankIsSkippedByAll) {
  for (const bool f16 : {false, true}) {
    TrainerOptions options = options_of(1);
    if (f16) options.autocast = kF16;
    options.max_steps = 5;
    with_runs(2, options, [](RankRun& run, int rank) {
      run.notes.each_step = [&run, rank](const optim::Progress& now) {
        run.factor = now.step == 2 && rank == 1 ? std::numeric_limits<double>::infinity() : 1;
        EXPECT_EQ(now.skipped_steps, now.step >= 3 ? 1 : 0);
      };
      EXPECT_EQ(run.trainer->train().last.skipped_steps, 1);
      for (const Tensor& p : run.model.parameters()) EXPECT_TRUE(std::isfinite(p.detach().abs().max().item()));
    });
  }
}

TEST(TrainerReplicasTest, RanksThatBeginDifferentlyAreNamed) {
  const TempFolder folder;
  cut_job(folder / "run");
  TrainerOptions options = options_of(2);
  options.output_dir = folder / "run";
  std::vector<std::string> errors = run_ranks(2, [&](const Environment& e) {
    RankRun run(ProcessGroup::connect(e, {.timeout = kPatient}), options);
    if (e.rank == 0) run.trainer->resume_from_checkpoint();
    run.trainer->train();
  });
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "Trainer: rank 1 begins with another run than rank 0: \"step 0 of 6\" there, \"step 3 of 6\" on rank 0. Do "
        "all ranks read the same files, with the same options?");
  errors = run_ranks(2, [](const Environment& e) {
    TrainerOptions mine = options_of(2);
    mine.max_grad_norm = e.rank == 0 ? 1 : 2;
    RankRun(ProcessGroup::connect(e, {.timeout = kPatient}), mine).trainer->train();
  });
  for (const std::string& error : errors)
    EXPECT_NE(
        error.find("rank 1 begins with another run than rank 0: \"gradient_accumulation_steps 2, max_grad_norm 2"),
        std::string::npos)
        << error;
}

TEST(TrainerReplicasTest, AnExceptionOnOneRankEndsTheOthersAndNamesIt) {
  const std::vector<std::string> errors = run_ranks(3, [](const Environment& e) {
    RankRun run(ProcessGroup::connect(e, {.timeout = kPatient}), options_of(1));
    run.before_loss = [&](const data::Batch&) {
      if (e.rank == 1 && run.trainer->progress().step == 2) throw std::runtime_error("the data are gone");
    };
    run.trainer->train();
  });
  EXPECT_EQ(errors[1], "the data are gone");
  for (const size_t r : {0, 2}) EXPECT_NE(errors[r].find("rank 1"), std::string::npos) << errors[r];
}

// Before a step is made that a checkpoint could lose.
TEST(TrainerReplicasTest, ShardsThatItIsNotToldOfAreRefused) {
  with_runs(2, {.max_steps = 4}, [](RankRun& run, int) {
    ShardedOptimizer shards(*run.ddp, *run.optimizer);
    const std::string error = rondo::test::error_of([&] { run.trainer->train(); });
    EXPECT_NE(error.find("Trainer::train: the optimizer's states are in shards; name its ShardedOptimizer"),
              std::string::npos)
        << error;
    EXPECT_EQ(run.trainer->progress().step, 0);
  });
}

TEST(TrainerReplicasTest, CancelledBeforeItBegins) {
  with_runs(2, options_of(1), [](RankRun& run, int rank) {
    if (rank == 0) run.trainer->cancel();
    const optim::TrainResult result = run.trainer->train();
    EXPECT_EQ(result.reason, StopReason::kCancelled);
    EXPECT_EQ(result.last.step, 0);
    EXPECT_EQ(run.trainer->train().reason, StopReason::kFinished);  // a call serves one train()
  });
}

}  // namespace
}  // namespace rondo::dist
