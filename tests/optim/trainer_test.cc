// The loop of Trainer: accumulation, precision, schedules, evaluation, callbacks, cancelling, early stop.
#include "rondo/optim/trainer/trainer.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <semaphore>
#include <thread>

#include "rondo/modules/layers.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/runtime/amp.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::optim {
namespace {

using namespace rondo::optim::test;

struct Classifier : nn::Module<Classifier> {
  nn::Linear fc = child("fc", 6, 5);
  Tensor forward(const Tensor& x) { return fc(x); }
  // x (B, T, 6), y i64 (B, T)
  Tensor loss(const data::Batch& batch) {
    return ops::cross_entropy(ops::reshape((*this)(batch[0]), {-1, 5}), ops::reshape(batch[1], {-1}));
  }
};

// Rows [begin, end) of four, where row r has r + 1 targets of 4.
data::Batch masked_batch(int64_t begin, int64_t end) {
  Generator generator(4);
  const Tensor x = Tensor::randn({4, 4, 6}, {kF64}, &generator);
  std::vector<int64_t> y;
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t t = 0; t < 4; ++t) y.push_back(t <= r ? (3 * r + t) % 5 : data::kIgnoreIndex);
  const Tensor targets = Tensor::from<int64_t>(y, {4, 4});
  return {ops::slice(x, 0, {begin, end}).contiguous(), ops::slice(targets, 0, {begin, end}).contiguous()};
}

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
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
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
    const Tensor loss = plain.model.loss(batch[0], batch[1]);
    loss.backward();
    const StepReport report = plain.optimizer->step({.max_norm = 0.5});
    plain.optimizer->zero_grad();
    EXPECT_EQ(run.notes.losses.at(step + 1), loss.item());
    EXPECT_EQ(run.notes.norms.at(step + 1), report.grad_norm);
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
  EXPECT_NEAR(loss, run.model.loss(batch[0], batch[1]).item(), 1e-6);
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

// ---- Cancelling, from another thread, counted in micro-steps

// Cancels while micro-step `at` of a run is under way, from a second thread.
TrainResult cancel_within(SmallRun& run, int64_t at, int64_t* started) {
  std::binary_semaphore inside(0), cancelled(0);
  run.before_loss = [&] {
    if (++*started != at) return;
    inside.release();
    cancelled.acquire();
  };
  std::thread other([&] {
    inside.acquire();
    run.trainer->cancel();
    cancelled.release();
  });
  const TrainResult result = run.trainer->train();
  other.join();
  run.before_loss = nullptr;
  return result;
}

TEST(TrainerCancel, ReturnsAfterTheMicroStepThatIsUnderWay) {
  for (const int64_t at : {1, 2, 3, 4, 6, 9}) {
    SCOPED_TRACE(at);
    SmallRun run({}, {.max_steps = 10, .gradient_accumulation_steps = 3});
    int64_t started = 0;
    const TrainResult result = cancel_within(run, at, &started);
    EXPECT_EQ(started, at);
    EXPECT_EQ(result.reason, StopReason::kCancelled);
    // A step whose last micro-step was under way is finished, another one is dropped.
    EXPECT_EQ(result.last.step, at < 9 ? at / 3 : 3);
    EXPECT_EQ(run.notes.ends, 1);
    for (const Tensor& p : run.model.parameters()) EXPECT_FALSE(p.grad().defined());
    // The same trainer goes on, and makes the steps of a run that nobody cancelled.
    run.trainer->train();
    SmallRun undisturbed({}, {.max_steps = 10, .gradient_accumulation_steps = 3});
    undisturbed.trainer->train();
    EXPECT_EQ(run.notes.losses.size(), 10u);
    expect_part_of(run.notes, undisturbed.notes);
    expect_same_parameters(run, undisturbed);
  }
}

// The batches of a step are read ahead: no further one is, and no micro-step begins.
TEST(TrainerCancel, WhileDataIsRead) {
  struct Slow : ListSource {
    using ListSource::ListSource;
    std::optional<data::Batch> next() override {
      if (++reads == 3) {
        inside.release();
        cancelled.acquire();
      }
      return ListSource::next();
    }
    int64_t reads = 0;
    std::binary_semaphore inside{0}, cancelled{0};
  } slow({masked_batch(0, 1), masked_batch(1, 2), masked_batch(2, 3), masked_batch(3, 4)});
  manual_seed(1);
  Classifier net;
  net.to(kF64);
  SGD optimizer(net.parameters(), {.lr = 1});
  int64_t losses = 0;
  const auto loss = [&](const data::Batch& b) { return ++losses, net.loss(b); };
  Trainer trainer(net, optimizer, loss, slow, {.max_steps = 1, .gradient_accumulation_steps = 4});
  std::thread other([&] {
    slow.inside.acquire();
    trainer.cancel();
    slow.cancelled.release();
  });
  EXPECT_EQ(trainer.train().reason, StopReason::kCancelled);
  other.join();
  EXPECT_EQ(slow.reads, 3);
  EXPECT_EQ(losses, 0);
  EXPECT_EQ(slow.position(), data::BatchSource::Position{});
  EXPECT_EQ(trainer.train().last.step, 1);
  EXPECT_EQ(losses, 4);
}

TEST(TrainerCancel, AnEvaluationEndsAfterOneBatch) {
  const TempFolder folder;
  const TrainerOptions options{.max_steps = 4, .eval_steps = 2, .output_dir = folder.path()};
  SmallRun run({}, options);
  int64_t started = 0;
  // Two steps, then the first of the two batches of the evaluation.
  const TrainResult result = cancel_within(run, 3, &started);
  EXPECT_EQ(started, 3);
  EXPECT_EQ(result.reason, StopReason::kCancelled);
  EXPECT_EQ(result.last.step, 2);
  EXPECT_FALSE(result.last.eval_loss);
  // The evaluation that was cut short is made when the run goes on, and what it reports of the last step is the same.
  SmallRun resumed({}, options), undisturbed({}, {.max_steps = 4, .eval_steps = 2});
  ASSERT_TRUE(resumed.trainer->resume_from_checkpoint());
  const Progress before = resumed.trainer->progress();
  EXPECT_EQ(before.loss, run.notes.losses.at(2));
  EXPECT_EQ(before.lr, run.notes.rates.at(2));
  EXPECT_EQ(before.grad_norm, run.notes.norms.at(2));
  resumed.trainer->train();
  undisturbed.trainer->train();
  EXPECT_TRUE(resumed.notes.evals.contains(2));
  expect_part_of(resumed.notes, undisturbed.notes);
  EXPECT_EQ(resumed.notes.evals, undisturbed.notes.evals);
}

TEST(TrainerCancel, BeforeTrainAndTwice) {
  SmallRun run({}, {.max_steps = 3});
  run.trainer->cancel();
  run.trainer->cancel();
  EXPECT_EQ(run.trainer->train().reason, StopReason::kCancelled);
  EXPECT_EQ(run.notes.micro_steps, 0);
  EXPECT_EQ(run.trainer->train().reason, StopReason::kFinished);
  EXPECT_EQ(run.notes.losses.size(), 3u);
}

// A user interface reads progress() and cancels while a worker trains.
TEST(TrainerCancel, ProgressIsReadWhileAnotherThreadTrains) {
  SmallRun run({}, {.max_steps = 1'000'000});
  TrainResult result;
  std::thread worker([&] { result = run.trainer->train(); });
  int64_t seen = 0;
  while (seen < 5) {
    const Progress now = run.trainer->progress();
    EXPECT_GE(now.step, seen);
    seen = now.step;
    std::this_thread::yield();
  }
  run.trainer->cancel();
  worker.join();
  EXPECT_EQ(result.reason, StopReason::kCancelled);
  EXPECT_GE(result.last.step, 5);
}

// ---- What throws

TEST(TrainerErrors, ACallbackThatThrowsLosesNothing) {
  SmallRun undisturbed({.dropout = 0.1}, {.max_steps = 6, .gradient_accumulation_steps = 2, .eval_steps = 2});
  undisturbed.trainer->train();
  for (const bool in_micro_step : {false, true}) {
    SmallRun run({.dropout = 0.1}, {.max_steps = 6, .gradient_accumulation_steps = 2, .eval_steps = 2});
    int64_t calls = 0;
    const auto every_third = [&](const Progress&) {
      if (++calls % 3 == 0) throw std::runtime_error("the window is closed");
    };
    (in_micro_step ? run.notes.each_micro_step : run.notes.each_step) = every_third;
    run.notes.each_evaluation = [&](const Progress& now) {
      if (now.step == 4) throw std::runtime_error("the window is closed");
    };
    int errors = 0;
    for (bool done = false; !done;) {
      try {
        done = run.trainer->train().reason == StopReason::kFinished;
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the window is closed");
        EXPECT_FALSE(run.model.parameters()[0].grad().defined());
        ASSERT_LT(++errors, 100);
      }
    }
    EXPECT_GE(errors, 3);
    EXPECT_EQ(run.notes.losses.size(), 6u);
    expect_part_of(run.notes, undisturbed.notes);
    EXPECT_EQ(run.notes.evals, undisturbed.notes.evals);
    expect_same_parameters(run, undisturbed);
  }
}

TEST(TrainerErrors, CallbacksMayNotTrainOrSaveInAStep) {
  const TempFolder folder;
  SmallRun run({}, {.max_steps = 3, .output_dir = folder / "out"});
  std::vector<std::string> errors;
  run.notes.each_micro_step = [&](const Progress& now) {
    if (now.step != 1) return;
    errors.push_back(error_of([&] { run.trainer->train(); }));
    errors.push_back(error_of([&] { run.trainer->resume_from_checkpoint(folder / "out"); }));
    errors.push_back(error_of([&] { run.trainer->save_checkpoint(); }));
  };
  run.notes.each_step = [&](const Progress& now) {
    if (now.step == 1) run.trainer->save_checkpoint();
  };
  run.trainer->train();
  EXPECT_EQ(errors, (std::vector<std::string>{
                        "Trainer::train: it is running already", "Trainer: resume before train(), not during it",
                        "Trainer::save_checkpoint: a step is under way; save in on_step(), not in on_micro_step()"}));
  EXPECT_EQ(run.notes.saved, (std::vector<int64_t>{1, 3}));
}

TEST(TrainerErrors, ALossOrDataThatThrowsCanBeTriedAgain) {
  SmallRun undisturbed({}, {.max_steps = 5, .gradient_accumulation_steps = 2});
  undisturbed.trainer->train();
  SmallRun run({}, {.max_steps = 5, .gradient_accumulation_steps = 2});
  int64_t calls = 0;
  run.before_loss = [&] {
    if (++calls == 4) throw Error("bad luck");
  };
  EXPECT_EQ(error_of([&] { run.trainer->train(); }), "bad luck");
  EXPECT_EQ(run.trainer->progress().step, 1);
  EXPECT_EQ(run.trainer->train().reason, StopReason::kFinished);
  expect_part_of(run.notes, undisturbed.notes);
  expect_same_parameters(run, undisturbed);
}

// ---- Early stop and the best parameters

// Losses by the number of the evaluation.
struct Scripted {
  explicit Scripted(std::vector<double> losses, TrainerOptions options)
      : losses(std::move(losses)), train({{Tensor::ones({1, 6})}}), eval({{Tensor::ones({1, 6})}}) {
    manual_seed(1);
    net = std::make_unique<Classifier>();
    optimizer = std::make_unique<SGD>(net->parameters(), SGDOptions{.lr = 0.1});
    options.eval_steps = 1;
    trainer = std::make_unique<Trainer>(
        *net, *optimizer,
        [this](const data::Batch& batch) {
          if (net->is_training()) return ops::mean((*net)(batch[0]));
          return Tensor::scalar(this->losses.at(evaluations++));
        },
        train, eval, options);
    trainer->add_callback(notes);
  }
  std::vector<float> weights() const { return net->fc.weight.detach().to_vector<float>(); }
  std::vector<double> losses;
  size_t evaluations = 0;
  std::unique_ptr<Classifier> net;
  std::unique_ptr<SGD> optimizer;
  ListSource train, eval;
  std::unique_ptr<Trainer> trainer;
  Notes notes;
};

TEST(EarlyStop, CountsEvaluationsThatAreNoBetter) {
  Scripted run({5, 4, 4, 4.5, 3, 3.5, 3, 7, 9}, {.max_steps = 9, .early_stopping_patience = 3});
  const TrainResult result = run.trainer->train();
  EXPECT_EQ(result.reason, StopReason::kEarlyStopped);
  EXPECT_EQ(result.last.step, 8);
  EXPECT_EQ(result.last.best_step, 5);
  EXPECT_EQ(result.last.best_eval_loss, 3);
  EXPECT_EQ(run.trainer->train().reason, StopReason::kEarlyStopped);  // and stays so
  EXPECT_EQ(run.evaluations, 8u);
}

// As transformers' EarlyStoppingCallback: a smaller improvement than the threshold moves the best, but does not reset
// the count.
TEST(EarlyStop, AThreshold) {
  Scripted run({5, 4.9, 4.8, 1, 1}, {.max_steps = 9, .early_stopping_patience = 2, .early_stopping_threshold = 0.5});
  const TrainResult result = run.trainer->train();
  EXPECT_EQ(result.last.step, 3);
  EXPECT_EQ(result.last.best_eval_loss, 4.8);
}

TEST(EarlyStop, ALossThatIsNotANumberIsNeverTheBest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Scripted run({nan, 2, nan, nan}, {.max_steps = 9, .early_stopping_patience = 2});
  const TrainResult result = run.trainer->train();
  EXPECT_EQ(result.reason, StopReason::kEarlyStopped);
  EXPECT_EQ(result.last.step, 4);
  EXPECT_EQ(result.last.best_eval_loss, 2);
}

TEST(EarlyStop, TheBestParametersComeBack) {
  Scripted run({5, 3, 4, 6}, {.max_steps = 4, .load_best_model_at_end = true});
  std::vector<float> at_best;
  run.notes.each_step = [&](const Progress& now) {
    if (now.step == 2) at_best = run.weights();
    if (now.step == 4) {
      EXPECT_NE(run.weights(), at_best);
    }
  };
  run.trainer->train();
  EXPECT_EQ(run.weights(), at_best);
}

TEST(EarlyStop, ItsStateIsPartOfACheckpoint) {
  const TempFolder folder;
  const TrainerOptions options{.max_steps = 9,
                               .early_stopping_patience = 3,
                               .load_best_model_at_end = true,
                               .output_dir = folder.path(),
                               .save_steps = 1};
  Scripted undisturbed({5, 3, 4, 4, 4}, {.max_steps = 9, .early_stopping_patience = 3, .load_best_model_at_end = true});
  undisturbed.trainer->train();
  Scripted killed({5, 3, 4, 4, 4}, options);
  killed.notes.each_evaluation = [&](const Progress& now) {
    if (now.step == 4) throw Error("killed");
  };
  EXPECT_THROW(killed.trainer->train(), Error);
  Scripted resumed({4, 4}, options);  // the evaluations of steps 4 and 5
  ASSERT_TRUE(resumed.trainer->resume_from_checkpoint());
  EXPECT_EQ(resumed.trainer->progress().step, 3);
  EXPECT_EQ(resumed.trainer->progress().best_step, 2);
  EXPECT_EQ(resumed.trainer->train().reason, StopReason::kEarlyStopped);
  EXPECT_EQ(resumed.notes.last.step, 5);
  EXPECT_EQ(resumed.weights(), undisturbed.weights());
  // A run without the option cannot lose them in silence.
  Scripted without({4, 4}, {.max_steps = 9, .output_dir = folder.path()});
  ASSERT_TRUE(without.trainer->resume_from_checkpoint());
  without.trainer->save_checkpoint();
  Scripted with({4, 4}, options);
  EXPECT_NE(error_of<ResumeError>([&] { with.trainer->resume_from_checkpoint(); }).find("load_best_model_at_end"),
            std::string::npos);
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
