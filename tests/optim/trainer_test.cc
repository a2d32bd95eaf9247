// The loop of Trainer: accumulation, precision, schedules, evaluation, what it leaves alone, logs.
#include "rondo/optim/trainer/trainer.h"

#include <cmath>
#include <limits>
#include <thread>

#include "rondo/modules/layers/layers.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/close.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::optim {
namespace {

using namespace rondo::optim::test;

std::vector<double> weights_after_one_step(std::vector<data::Batch> batches, int64_t accumulate, bool count,
                                           Progress* progress = nullptr) {
  manual_seed(1);
  Classifier net;
  net.to(kF64);
  SGD optimizer(net.parameters(), {.lr = 1});
  ListSource source(std::move(batches));
  TrainerOptions options{.max_steps = 1, .gradient_accumulation_steps = accumulate, .max_grad_norm = 0};
  if (count) options.count_targets = unmasked_targets;
  Trainer trainer(
      net, optimizer, [&](const data::Batch& b) { return net.loss(b); }, source, options);
  const TrainResult result = trainer.train();
  if (progress) *progress = result.last;
  std::vector<double> all;
  for (const Tensor& p : net.parameters())
    for (const double v : p.detach().to_vector<double>()) all.push_back(v);
  return all;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<double> off(a.size());
  for (size_t i = 0; i < a.size(); ++i) off[i] = a[i] - b[i];
  return test::largest(off);
}

TEST(TrainerAccumulation, IsTheMeanOverAllTargetsOfTheStep) {
  Progress whole, parts;
  const std::vector<double> at_once = weights_after_one_step({masked_batch(0, 4)}, 1, true, &whole);
  const std::vector<data::Batch> cut = {masked_batch(0, 1), masked_batch(1, 2), masked_batch(2, 4)};
  const std::vector<double> in_parts = weights_after_one_step(cut, 3, true, &parts);
  EXPECT_LT(largest_difference(at_once, in_parts), 1e-14);
  EXPECT_NEAR(whole.loss, parts.loss, 1e-14);
  // Counting rows is another mean here, so the test can fail.
  EXPECT_GT(largest_difference(at_once, weights_after_one_step(cut, 3, false)), 1e-3);
}

TEST(TrainerAccumulation, BatchesWithoutTargetsAreLeftOut) {
  data::Batch none = masked_batch(0, 1);
  none[1] = Tensor::full({1, 4}, data::kIgnoreIndex, {kI64});
  const std::vector<double> plain = weights_after_one_step({masked_batch(0, 4)}, 1, true);
  EXPECT_EQ(plain, weights_after_one_step({none, masked_batch(0, 4)}, 2, true));
  // A step without any target changes nothing, and is counted.
  Progress progress;
  const std::vector<double> nothing = weights_after_one_step({none}, 1, true, &progress);
  EXPECT_EQ(progress.skipped_steps, 1);
  EXPECT_TRUE(std::isnan(progress.loss));
  EXPECT_EQ(progress.step, 1);
  EXPECT_EQ(nothing.size(), plain.size());
  for (const double v : nothing) EXPECT_TRUE(std::isfinite(v));
}

TEST(TrainerAccumulation, AnEpochEndsWithASmallerStep) {
  SmallRun run({}, {.num_train_epochs = 2, .gradient_accumulation_steps = 3, .logging_steps = 1});
  ASSERT_EQ(run.train_data->size(), 8);  // 22 rows: 3 + 3 + 2 batches
  const TrainResult result = run.trainer->train();
  EXPECT_EQ(result.reason, StopReason::kFinished);
  EXPECT_EQ(result.last.step, 6);
  EXPECT_EQ(result.last.epoch, 2);
  EXPECT_EQ(run.notes.micro_steps, 16);
  EXPECT_EQ(run.notes.logged.size(), 6u);
  EXPECT_EQ(run.notes.evals.size(), 2u);  // at the end of each epoch
  EXPECT_TRUE(run.notes.evals.contains(3) && run.notes.evals.contains(6));
  EXPECT_GT(result.last.samples_per_second, 0);
  EXPECT_GT(result.last.targets_per_second, result.last.samples_per_second);
}

// The trainer makes the steps of the loop that it stands for.
TEST(Trainer, MakesTheStepsOfThePlainLoop) {
  SmallRun run({.dropout = 0.2}, {.max_steps = 5, .max_grad_norm = 0.5, .seed = 77});
  run.trainer->train();
  SmallRun plain({.dropout = 0.2}, {});
  plain.model.train();
  data::BatchSource& source = *plain.train_data;
  for (int64_t step = 0; step < 5; ++step) {
    default_generator().set_state(77, static_cast<uint64_t>(step) << 32);
    const data::Batch batch = *source.next();
    const Device device = plain.optimizer->device();
    const Tensor loss = plain.model.loss(batch[0].to(device), batch[1].to(device));
    loss.backward();
    const StepReport report = plain.optimizer->step({.max_norm = 0.5});
    plain.optimizer->zero_grad();
    EXPECT_EQ(run.notes.losses.at(step + 1), loss.item());
    EXPECT_EQ(run.notes.norms.at(step + 1), report.grad_norm());
  }
  expect_same_parameters(run, plain);
}

TEST(Trainer, EvaluationWeighsByTargetsAndTouchesNothing) {
  SmallRun run({.dropout = 0.5}, {.max_steps = 1});
  run.model.train();
  run.model.h[0].eval();  // a mode that is the user's own
  default_generator().set_state(6, 12);
  const double loss = run.trainer->evaluate();
  EXPECT_EQ(default_generator().seed(), 6u);
  EXPECT_EQ(default_generator().offset(), 12u);
  EXPECT_TRUE(run.model.is_training());
  EXPECT_FALSE(run.model.h[0].is_training());
  EXPECT_TRUE(run.model.h[1].is_training());
  EXPECT_EQ(loss, run.trainer->evaluate());
  // All rows at once, without dropout.
  data::DataLoader all(std::make_shared<MaskedRows>(7, 2), {.batch_size = 7});
  const data::Batch batch = *all.next();
  run.model.eval();
  const Device device = run.optimizer->device();
  EXPECT_NEAR(loss, run.model.loss(batch[0].to(device), batch[1].to(device)).item(), 1e-6);
}

// The data stays on the host, the model is elsewhere; a checkpoint of one device goes on on another.
TEST(Trainer, HasTheBitsOfTheCPUOnAnyDevice) {
  std::optional<rondo::test::FakeDevice> fake;
  if (rondo::test::test_device() == kCPU) fake.emplace(rondo::test::FakeDeviceOptions{.seed = 5});
  const Device device = fake ? fake->device() : rondo::test::test_device();
  for (const bool compiled : {false, true}) {
    const Variant variant{.dropout = 0.2, .compiled = compiled, .workers = 2, .average = true};
    const DeviceScope host(kCPU);
    SmallRun whole(variant, {.max_steps = 6, .gradient_accumulation_steps = 2, .eval_steps = 3});
    whole.trainer->train();
    const auto made = [&](Device on, int64_t steps, const std::string& folder) {
      const DeviceScope scope(on);
      return std::make_unique<SmallRun>(
          variant,
          TrainerOptions{.max_steps = steps, .gradient_accumulation_steps = 2, .eval_steps = 3, .output_dir = folder});
    };
    for (const auto& [from, to] : {std::pair{device, kCPU}, std::pair{kCPU, device}}) {
      const rondo::test::TempFolder folder;
      const auto first = made(from, 3, folder.path()), second = made(to, 6, folder.path());
      first->trainer->train();
      expect_part_of(first->notes, whole.notes);
      ASSERT_TRUE(second->trainer->resume_from_checkpoint());
      second->trainer->train();
      EXPECT_EQ(second->notes.losses.size(), 3u);
      expect_part_of(second->notes, whole.notes);
      for (const auto& [name, tensor] : whole.model.state_dict())
        EXPECT_TRUE(same_bits(tensor, second->model.state_dict().at(name))) << name;
    }
  }
}

// The training data may be the evaluation data, too.
TEST(Trainer, EvaluationDoesNotMoveTheTrainingData) {
  SmallRun run({}, {});
  std::vector<int64_t> first;  // of each batch
  const auto loss = [&](const data::Batch& b) {
    if (run.model.is_training()) first.push_back(b[0].to_vector<int64_t>()[0]);
    return run.model.loss(b[0], b[1]);
  };
  const auto batches = [&](int64_t eval_steps) {
    first.clear();
    run.train_data->seek({});
    Trainer(run.model, *run.optimizer, loss, *run.train_data, *run.train_data,
            {.max_steps = 12, .eval_steps = eval_steps})
        .train();
    return first;
  };
  const std::vector<int64_t> rarely = batches(100);
  EXPECT_EQ(rarely.size(), 12u);
  EXPECT_EQ(rarely, batches(1));
}

// Models train side by side, each on a thread of its own, as they would alone.
TEST(Trainer, TwoOnTwoThreads) {
  const auto options = [](uint64_t seed) {
    return TrainerOptions{.max_steps = 12, .gradient_accumulation_steps = 2, .eval_steps = 4, .seed = seed};
  };
  SmallRun a({.dropout = 0.2}, options(1)), b({.dropout = 0.2, .lora = true}, options(2));
  std::thread first([&] { a.trainer->train(); }), second([&] { b.trainer->train(); });
  first.join();
  second.join();
  SmallRun alone_a({.dropout = 0.2}, options(1)), alone_b({.dropout = 0.2, .lora = true}, options(2));
  alone_a.trainer->train();
  alone_b.trainer->train();
  expect_part_of(a.notes, alone_a.notes);
  expect_part_of(b.notes, alone_b.notes);
  expect_same_parameters(a, alone_a);
  expect_same_parameters(b, alone_b);
}

TEST(Trainer, LeavesModesAndRandomNumbersAsTheyWere) {
  SmallRun run({.dropout = 0.5}, {.max_steps = 2});
  run.model.eval();
  run.model.h[1].train();
  default_generator().set_state(6, 12);
  run.notes.each_step = [&](const Progress&) { EXPECT_TRUE(run.model.is_training()); };
  run.trainer->train();
  EXPECT_FALSE(run.model.is_training());
  EXPECT_FALSE(run.model.h[0].is_training());
  EXPECT_TRUE(run.model.h[1].is_training());
  EXPECT_EQ(default_generator().seed(), 6u);
  EXPECT_EQ(default_generator().offset(), 12u);
  for (const Tensor& p : run.model.parameters()) EXPECT_FALSE(p.grad().defined());
}

// Callbacks may draw random numbers, evaluate and generate: later losses do not change.
TEST(Trainer, WhatCallbacksDrawChangesNoLoss) {
  SmallRun quiet({.dropout = 0.2}, {.max_steps = 4}), busy({.dropout = 0.2}, {.max_steps = 4});
  busy.notes.each_step = [&](const Progress&) {
    Tensor::randn({3});
    busy.trainer->evaluate();
  };
  quiet.trainer->train();
  busy.trainer->train();
  expect_part_of(busy.notes, quiet.notes);
  expect_same_parameters(busy, quiet);
}

TEST(Trainer, SchedulesAreForEachGroupOrForAll) {
  manual_seed(1);
  Classifier net;
  const std::vector<Tensor> p = net.parameters();
  SGD optimizer(std::vector<ParamGroup<SGDOptions>>{{{p[0]}, {.lr = 1}}, {{p[1]}, {.lr = 1}}});
  net.to(kF64);
  ListSource source({masked_batch(0, 4)});
  const auto loss = [&](const data::Batch& b) { return net.loss(b); };
  std::vector<std::pair<double, double>> rates;
  struct Rates : Callback {
    Rates(SGD& optimizer, std::vector<std::pair<double, double>>& rates) : optimizer(optimizer), rates(rates) {}
    void on_step(const Progress&) override { rates.emplace_back(optimizer.lr(0), optimizer.lr(1)); }
    SGD& optimizer;
    std::vector<std::pair<double, double>>& rates;
  } watch(optimizer, rates);
  const LinearWithWarmup warm{.lr = 0.4, .warmup_steps = 2, .total_steps = 4};
  {
    Trainer trainer(net, optimizer, loss, source, {.max_steps = 4, .lr_schedules = {warm, Constant{.lr = 0.3}}});
    trainer.add_callback(watch);
    trainer.train();
    const std::vector<std::pair<double, double>> expected = {{0, 0.3}, {0.2, 0.3}, {0.4, 0.3}, {0.2, 0.3}};
    EXPECT_EQ(rates, expected);
  }
  rates.clear();
  Trainer one(net, optimizer, loss, source, {.max_steps = 2, .lr_schedules = {warm}});
  one.add_callback(watch);
  one.train();
  EXPECT_EQ(rates[1], std::pair(0.2, 0.2));
  const auto three = [&] { Trainer(net, optimizer, loss, source, {.lr_schedules = {warm, warm, warm}}); };
  EXPECT_NE(error_of(three).find("the optimizer has 2 groups"), std::string::npos);
}

// Values of transformers' schedules (get_linear_schedule_with_warmup, get_constant_schedule_with_warmup).
TEST(Schedules, WarmUpAsTransformersDoes) {
  const LinearWithWarmup linear{.lr = 8, .warmup_steps = 4, .total_steps = 12};
  const ConstantWithWarmup constant{.lr = 8, .warmup_steps = 4};
  const std::vector<double> expected = {0, 2, 4, 6, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0};
  for (int64_t step = 0; step < std::ssize(expected); ++step) {
    EXPECT_EQ(linear(step), expected[static_cast<size_t>(step)]);
    EXPECT_EQ(constant(step), step < 4 ? expected[static_cast<size_t>(step)] : 8);
  }
  EXPECT_EQ((LinearWithWarmup{.lr = 1, .warmup_steps = 0, .total_steps = 2}(0)), 1);
  EXPECT_EQ((ConstantWithWarmup{.lr = 1, .warmup_steps = 0}(0)), 1);
}

TEST(Trainer, LowerPrecision) {
  SmallRun exact({}, {.max_steps = 6}), bf16({}, {.max_steps = 6, .autocast = kBF16}),
      f16({}, {.max_steps = 6, .autocast = kF16});
  bool lower = false;
  bf16.before_loss = [&] { lower = amp::autocast_dtype() == kBF16; };
  for (SmallRun* run : {&exact, &bf16, &f16}) run->trainer->train();
  EXPECT_TRUE(lower);
  EXPECT_FALSE(amp::autocast_dtype());
  for (const int64_t step : {1, 6}) {
    EXPECT_NE(exact.notes.losses.at(step), bf16.notes.losses.at(step));
    EXPECT_NEAR(exact.notes.losses.at(step), bf16.notes.losses.at(step), 0.05);
    EXPECT_NE(bf16.notes.losses.at(step), f16.notes.losses.at(step));
    EXPECT_NEAR(exact.notes.losses.at(step), f16.notes.losses.at(step), 0.02);
    EXPECT_NEAR(exact.notes.norms.at(step) / f16.notes.norms.at(step), 1, 0.05);  // the scale is taken out again
  }
}

// An overflow in f16 skips the step, and the scale falls.
TEST(Trainer, AnOverflowSkipsTheStep) {
  manual_seed(1);
  Classifier net;
  SGD optimizer(net.parameters(), {.lr = 0.1});
  Generator generator(1);
  ListSource source({{Tensor::randn({2, 6}, {}, &generator)}});
  int64_t calls = 0;
  const TempFolder folder;
  const auto loss = [&](const data::Batch& b) { return ops::mean(net(b[0])) * (calls++ == 1 ? 1e36 : 1.0); };
  Trainer trainer(net, optimizer, loss, source, {.max_steps = 3, .autocast = kF16, .output_dir = folder / "a"});
  std::vector<std::vector<float>> weights;
  struct Weights : Callback {
    Weights(Classifier& net, std::vector<std::vector<float>>& out) : net(net), out(out) {}
    void on_step(const Progress&) override { out.push_back(net.fc.weight.detach().to_vector<float>()); }
    Classifier& net;
    std::vector<std::vector<float>>& out;
  } watch(net, weights);
  trainer.add_callback(watch);
  const TrainResult result = trainer.train();
  EXPECT_EQ(result.last.skipped_steps, 1);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_NE(weights[1], weights[2]);
  // A run that goes on has the same scale and the same count.
  Trainer resumed(net, optimizer, loss, source, {.max_steps = 3, .autocast = kF16, .output_dir = folder / "b"});
  resumed.resume_from_checkpoint(folder / "a");
  EXPECT_EQ(resumed.train().last.skipped_steps, 1);
  for (const char* run : {"a", "b"}) {
    const io::TensorMap extra = io::load_latest_checkpoint(folder / run).checkpoint->extra;
    EXPECT_EQ(extra.at("scaler.scale").item(), 32768);
    EXPECT_EQ(extra.at("scaler.growth_tracker").item(), 1);
    EXPECT_EQ(extra.at("scaler.skipped").item(), 1);
  }
}

TEST(Trainer, WhatCannotWorkIsSaid) {
  SmallRun run({}, {.max_steps = 1});
  ListSource empty({}), some({masked_batch(0, 4)});
  const Trainer::LossFn loss = [&](const data::Batch& b) { return run.model.loss(b[0], b[1]); };
  const auto says = [&](data::BatchSource& source, TrainerOptions options, const std::string& part) {
    const std::string message = error_of([&] { Trainer(run.model, *run.optimizer, loss, source, options); });
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
  };
  says(empty, {}, "the training data holds no batch");
  says(some, {.gradient_accumulation_steps = 0}, "gradient_accumulation_steps is 0");
  says(some, {.num_train_epochs = std::nan("")}, "num_train_epochs");
  says(some, {.max_grad_norm = -1}, "max_grad_norm is -1");
  says(some, {.autocast = kF64}, "autocast must be bf16 or f16");
  says(some, {.logging_steps = 0}, "logging_steps is 0");
  says(some, {.early_stopping_patience = 1}, "needs evaluation data");
  says(some, {.load_best_model_at_end = true}, "needs evaluation data");
  says(some, {.save_total_limit = 0}, "save_total_limit is 0");
  const auto no_evaluation = [&] { Trainer(run.model, *run.optimizer, loss, some, {}).evaluate(); };
  EXPECT_NE(error_of(no_evaluation).find("no evaluation data"), std::string::npos);
  const auto empty_evaluation = [&] { Trainer(run.model, *run.optimizer, loss, some, empty, {}); };
  EXPECT_NE(error_of(empty_evaluation).find("the evaluation data holds no batch"), std::string::npos);
  const auto not_a_number = [&] {
    Trainer(run.model, *run.optimizer, [](const data::Batch& b) { return b[0]; }, some, {.max_steps = 1}).train();
  };
  EXPECT_NE(error_of(not_a_number).find("a tensor of one element; it returned [4, 4, 6]"), std::string::npos);
  const auto unnamed_folder = [&] { run.trainer->resume_from_checkpoint(); };
  EXPECT_NE(error_of(unnamed_folder).find("output_dir"), std::string::npos);
}

TEST(Trainer, UnmaskedTargetsNeedTheSecondTensor) {
  EXPECT_EQ(unmasked_targets(masked_batch(0, 4)), 1 + 2 + 3 + 4);
  EXPECT_EQ(unmasked_targets({masked_batch(0, 4)[0], masked_batch(0, 4)[1].t(), Tensor::zeros({4, 4})}), 10);
  EXPECT_NE(error_of([] { unmasked_targets({Tensor::zeros({2})}); }).find("holds 1 tensors"), std::string::npos);
  const auto floats = [] { unmasked_targets({Tensor::zeros({2}), Tensor::zeros({2})}); };
  EXPECT_NE(error_of(floats).find("i64"), std::string::npos);
  EXPECT_EQ(batch_rows({Tensor::zeros({3, 2})}), 3);
  EXPECT_EQ(batch_rows({Tensor::scalar(1.0)}), 1);
  EXPECT_THROW(batch_rows({}), Error);
}

// A source that promised a batch and has none.
TEST(Trainer, DataThatRunsDryIsAnError) {
  struct Dry : ListSource {
    Dry() : ListSource({masked_batch(0, 4)}) {}
    std::optional<data::Batch> next() override { return std::nullopt; }
  } dry;
  SmallRun run({}, {});
  Trainer trainer(run.model, *run.optimizer, [](const data::Batch& b) { return b[0]; }, dry, {.max_steps = 1});
  EXPECT_NE(error_of([&] { trainer.train(); }).find("the training data holds no batch"), std::string::npos);
}

// ---- Logs as callbacks

TEST(TrainerLogs, AResumedRunContinuesTheFiles) {
  const TempFolder folder;
  const auto options = [&] {
    return TrainerOptions{
        .max_steps = 6, .logging_steps = 1, .eval_steps = 3, .output_dir = folder / "run", .save_steps = 2};
  };
  const auto train = [&](int64_t until) {
    SmallRun run({}, options());
    MetricsLog metrics(folder / "run/metrics.jsonl");
    TensorBoardLog board(folder / "run/tensorboard");
    run.trainer->add_callback(metrics);
    run.trainer->add_callback(board);
    run.trainer->resume_from_checkpoint();
    run.notes.each_step = [&](const Progress& now) {
      if (now.step == until) throw Error("killed");
    };
    try {
      run.trainer->train();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "killed");
    }
    return run.notes.losses;
  };
  std::map<int64_t, double> losses = train(6);  // dies in step 6; the newest checkpoint is that of step 4
  train(100);
  const MetricsFile file(folder / "run/metrics.jsonl", 6);
  std::vector<int64_t> steps;
  for (const MetricsRecord& record : file.records()) {
    steps.push_back(record.step);
    EXPECT_EQ(record.loss, losses.at(record.step));
    EXPECT_EQ(record.eval_loss.has_value(), steps.size() == 4 || steps.size() == 8);
    EXPECT_GT(record.targets_per_s, 0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 3, 4, 5, 6, 6}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "run/tensorboard"), {}), 2);
}

}  // namespace
}  // namespace rondo::optim
