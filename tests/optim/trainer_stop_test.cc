// How a Trainer's run ends before its last step: cancelled, with an error, early.
#include <cmath>
#include <limits>
#include <semaphore>
#include <thread>

#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::optim {
namespace {

using namespace rondo::optim::test;

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

// A classifier whose forward also writes: it keeps a running mean of its inputs and takes it away from them.
struct Centred : nn::Module<Centred> {
  Classifier net = child("net");
  Tensor& mean = buffer("mean", Tensor::zeros({6}, kF64));
  Tensor loss(const data::Batch& b) {
    if (is_training()) {
      const NoGrad off;
      mean.copy_(mean * 0.9 + ops::mean(b[0], {0, 1}) * 0.1);
    }
    return net.loss({b[0] - mean, b[1]});
  }
};

// Buffers that a forward pass writes are part of the step: a step that does not end leaves them as they were.
TEST(TrainerCancel, ADroppedStepLeavesNoBuffersBehind) {
  const auto train = [](bool interrupted, Tensor& mean) {
    manual_seed(1);
    Centred model;
    model.to(kF64);
    SGD optimizer(model.parameters(), {.lr = 0.1});
    ListSource rows({masked_batch(0, 1), masked_batch(1, 2), masked_batch(2, 3), masked_batch(3, 4)});
    const auto loss = [&](const data::Batch& b) { return model.loss(b); };
    Trainer trainer(model, optimizer, loss, rows, {.max_steps = 6, .gradient_accumulation_steps = 2});
    Notes notes;
    trainer.add_callback(notes);
    notes.each_micro_step = [&](const Progress&) {
      if (interrupted && notes.micro_steps == 3) trainer.cancel();
      if (interrupted && notes.micro_steps == 7) throw Error("mine");
    };
    if (interrupted) {
      EXPECT_EQ(trainer.train().reason, StopReason::kCancelled);
      EXPECT_EQ(error_of([&] { trainer.train(); }), "mine");
    }
    trainer.train();
    mean = model.mean.clone();
    return notes.losses;
  };
  Tensor mean, undisturbed_mean;
  EXPECT_EQ(train(true, mean), train(false, undisturbed_mean));
  EXPECT_TRUE(same_bits(mean, undisturbed_mean));
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
  const TempFolder folder;
  SmallRun run({}, {.max_steps = 3, .output_dir = folder.path()});
  run.trainer->cancel();
  run.trainer->cancel();
  EXPECT_EQ(run.trainer->train().reason, StopReason::kCancelled);
  EXPECT_EQ(run.notes.micro_steps, 0);
  SmallRun resumed({}, {.max_steps = 3, .output_dir = folder.path()});
  EXPECT_EQ(resumed.trainer->resume_from_checkpoint()->step, 0);
  resumed.trainer->train();
  EXPECT_EQ(run.trainer->train().reason, StopReason::kFinished);
  EXPECT_EQ(run.notes.losses.size(), 3u);
  EXPECT_EQ(run.notes.losses, resumed.notes.losses);
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
    errors.push_back(error_of([&] { run.trainer->add_callback(run.notes); }));
  };
  run.notes.each_step = [&](const Progress& now) {
    if (now.step == 1) run.trainer->save_checkpoint();
  };
  run.trainer->train();
  EXPECT_EQ(errors, (std::vector<std::string>{
                        "Trainer::train: it is running already", "Trainer: resume before train(), not during it",
                        "Trainer::save_checkpoint: a step is under way; save in on_step(), not in on_micro_step()",
                        "Trainer::add_callback: add callbacks before train()"}));
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
          return Tensor::scalar<double>(this->losses.at(evaluations++));
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

}  // namespace
}  // namespace rondo::optim
