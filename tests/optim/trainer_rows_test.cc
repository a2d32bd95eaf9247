// A run goes on with another batch size: steps have the same rows, and the same losses but for the order of sums; where
// batches are the same, too, the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>

#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::optim {
namespace {

using test::TempFolder;

// Examples that their first token tells apart, of 2 to 20 tokens: 11 batches of 4 and one of 2.
std::shared_ptr<const data::ExampleSet> some_examples() {
  auto set = std::make_shared<data::ExampleSet>();
  for (int32_t i = 0; i < 46; ++i) {
    data::Example example;
    for (int32_t c = 0; c < 2 + i * 7 % 19; ++c) example.ids.push_back(c == 0 ? i : (i * 31 + c * 17) % 64);
    example.targets.assign(example.ids.size(), true);
    set->add(example);
  }
  return set;
}

// What a run does, by step.
struct Steps : Callback {
  std::map<int64_t, std::vector<int64_t>> rows;  // first tokens, row after row
  std::map<int64_t, double> losses;
  std::vector<int64_t> now;
  void on_step(const Progress& progress) override {
    rows[progress.step] = std::exchange(now, {});
    losses[progress.step] = progress.loss;
  }
};

struct RowsRun {
  RowsRun(int64_t batch_size, int64_t accumulate, TrainerOptions options, int64_t save_steps = 1000)
      : model({.vocab_size = 64, .block_size = 24, .n_layer = 1, .n_head = 2, .n_embd = 16}, 3),
        batches(some_examples(), {.batch_size = batch_size, .max_length = 24, .seed = 5}) {
    model.to(kF64);
    optimizer.emplace(model.parameters(), SGDOptions{.lr = 0.1, .momentum = 0.9});
    options.gradient_accumulation_steps = accumulate;
    options.count_targets = unmasked_targets;
    options.save_steps = save_steps;
    trainer.emplace(
        model, *optimizer,
        [this](const data::Batch& b) {
          for (int64_t row = 0; row < b[0].size(0); ++row) steps.now.push_back(b[0][row][0].item<int64_t>());
          return model.loss(b[0], b[1]);
        },
        batches, options);
    trainer->add_callback(steps);
  }
  nn::GPT2 model;
  data::ExampleBatches batches;
  std::optional<SGD> optimizer;
  std::optional<Trainer> trainer;
  Steps steps;
};

// `bits`: the batches are the same, too.
void expect_goes_on(const Steps& resumed, const Steps& undisturbed, int64_t after, bool bits) {
  ASSERT_EQ(resumed.rows.size(), undisturbed.rows.size() - static_cast<size_t>(after));
  for (const auto& [step, rows] : resumed.rows) {
    EXPECT_EQ(rows, undisturbed.rows.at(step)) << step;
    const double have = resumed.losses.at(step), want = undisturbed.losses.at(step);
    if (bits) EXPECT_EQ(have, want) << step;
    else EXPECT_NEAR(have, want, 1e-10 * want) << step;
  }
}

TEST(TrainerRows, GoOnWithAnotherBatchSize) {
  RowsRun undisturbed(4, 1, {.max_steps = 30});
  undisturbed.trainer->train();
  // In the middle of an epoch, at its end, and in the next one.
  for (const int64_t after : {5, 12, 17}) {
    SCOPED_TRACE(after);
    const TempFolder folder;
    RowsRun(4, 1, {.max_steps = after, .output_dir = folder.path()}).trainer->train();
    for (const auto& [rows, accumulate] : {std::pair(4, 1), std::pair(2, 2), std::pair(1, 4)}) {
      SCOPED_TRACE(rows);
      RowsRun run(rows, accumulate, {.max_steps = 30});
      ASSERT_EQ(run.trainer->resume_from_checkpoint(folder.path())->step, after);
      run.trainer->train();
      expect_goes_on(run.steps, undisturbed.steps, after, rows == 4);
    }
  }
}

// To smaller batches and back: the order is still that of the first run.
TEST(TrainerRows, ThereAndBack) {
  RowsRun undisturbed(4, 1, {.num_train_epochs = 2});
  undisturbed.trainer->train();
  EXPECT_EQ(undisturbed.steps.rows.size(), 24u);
  const TempFolder folder;
  RowsRun(4, 1, {.max_steps = 3, .output_dir = folder.path()}).trainer->train();
  for (const auto& [rows, accumulate, until] : {std::tuple(2, 2, 8), std::tuple(1, 4, 13)}) {
    RowsRun run(rows, accumulate, {.max_steps = until, .output_dir = folder.path()});
    run.trainer->resume_from_checkpoint();
    run.trainer->train();
  }
  RowsRun last(4, 1, {.num_train_epochs = 2});
  ASSERT_EQ(last.trainer->resume_from_checkpoint(folder.path())->step, 13);
  last.trainer->train();
  expect_goes_on(last.steps, undisturbed.steps, 13, false);
  // Without a change it is bit for bit.
  RowsRun first(2, 2, {.max_steps = 20}), second(2, 2, {.max_steps = 20});
  first.trainer->resume_from_checkpoint(folder.path());
  second.trainer->resume_from_checkpoint(folder.path());
  first.trainer->train();
  second.trainer->train();
  EXPECT_EQ(first.steps.losses, second.steps.losses);
  EXPECT_EQ(first.steps.rows.size(), 7u);
}

// As many batches a step as before, but of another size: the epochs end where they would have ended, no row comes twice
// and none is left out, and what happens once an epoch happens at its end.
TEST(TrainerRows, AnotherBatchSizeAloneEndsWithTheEpochs) {
  struct Ends : Callback {
    std::vector<double> epochs;
    void on_save(const Progress& now, const std::string& /*path*/) override { epochs.push_back(now.epoch); }
  };
  for (const auto& [before, now, after] :
       {std::tuple(4, 1, 5), std::tuple(4, 2, 12), std::tuple(4, 1, 17), std::tuple(1, 4, 46), std::tuple(2, 4, 6)}) {
    SCOPED_TRACE(testing::Message() << before << " to " << now << " after " << after);
    const TempFolder folder;
    RowsRun first(before, 1, {.max_steps = after, .output_dir = folder.path()});
    first.trainer->train();
    std::vector<double> rates;
    const auto rate = [&](int64_t step) {
      rates.push_back(static_cast<double>(step));
      return 0.1;
    };
    RowsRun run(now, 1, {.num_train_epochs = 3, .lr_schedules = {rate}, .output_dir = folder.path()}, /*save_steps=*/0);
    Ends ends;
    run.trainer->add_callback(ends);
    ASSERT_EQ(run.trainer->resume_from_checkpoint(folder.path())->step, after);
    EXPECT_EQ(run.trainer->train().last.epoch, 3);
    const int64_t of_an_epoch = run.batches.size();
    std::vector<double> whole;
    for (int64_t epoch = first.batches.position().epoch + 1; epoch <= 3; ++epoch)
      whole.push_back(static_cast<double>(epoch));
    if (first.batches.position().batch == first.batches.size()) whole.erase(whole.begin());
    EXPECT_EQ(ends.epochs, whole);
    EXPECT_EQ(rates.back(), static_cast<double>(3 * of_an_epoch - 1));
    std::map<int64_t, int> times;
    for (const Steps* steps : {&first.steps, &run.steps})
      for (const auto& [step, rows] : steps->rows)
        for (const int64_t row : rows) ++times[row];
    EXPECT_EQ(times.size(), 46u);
    for (const auto& [row, n] : times) EXPECT_EQ(n, 3) << row;
  }
}

TEST(TrainerRows, WhatDoesNotFitChangesNothing) {
  const TempFolder folder;
  RowsRun(2, 1, {.max_steps = 3, .output_dir = folder.path()}).trainer->train();  // 6 rows
  RowsRun fours(4, 1, {.max_steps = 30});
  const auto refused = [&](RowsRun& run) {
    return rondo::test::error_of<ResumeError>([&] { run.trainer->resume_from_checkpoint(folder.path()); });
  };
  EXPECT_NE(refused(fours).find("trained on 6 rows of the epoch, and no batch of 4 rows begins there"),
            std::string::npos);
  EXPECT_EQ(fours.batches.rows(), (data::BatchSource::Rows{4, 4}));
  RowsRun fresh(4, 1, {.max_steps = 30});
  fresh.trainer->train();
  fours.trainer->train();
  EXPECT_EQ(fours.steps.rows, fresh.steps.rows);
  EXPECT_EQ(fours.steps.losses, fresh.steps.losses);
  RowsRun threes(3, 1, {.max_steps = 30});
  EXPECT_NE(refused(threes).find("ignore_data_skip goes on at the beginning"), std::string::npos);
  RowsRun ignoring(3, 1, {.max_steps = 6, .ignore_data_skip = true});
  ASSERT_EQ(ignoring.trainer->resume_from_checkpoint(folder.path())->step, 3);
  ignoring.trainer->train();
  EXPECT_EQ(ignoring.steps.rows.size(), 3u);
}

}  // namespace
}  // namespace rondo::optim
