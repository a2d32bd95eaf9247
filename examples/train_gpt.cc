// Trains a GPT-2 on a text file, and samples from it: start here to write a training program of your own.
//
//   train_gpt --data=tinyshakespeare.txt                    # nanoGPT's CPU setting; --help lists every option
//   train_gpt --init_from=resume --out_dir=out              # after a kill: goes on, bit for bit
//   train_gpt --data=... --device=cuda                      # on the first GPU; cuda:1 is the second
//   rondorun --nproc-per-node 2 train_gpt --data=...        # two processes, each with its own --batch_size windows
//   train_gpt --study                                       # what compiling gives and costs: gpt_study.h
//
// Weights, batches, dropout and samples are functions of (seed, step). So the step in a checkpoint is all the random
// state there is. Under rondorun every process draws its rows of one common batch: n processes make the same steps as
// one process with n times the batch. Rank 0 prints and writes the files.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/dist/groups/scalar_reduction.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/examples/compiler.h"
#include "rondo/examples/corpus.h"
#include "rondo/examples/gpt_study.h"
#include "rondo/examples/job.h"
#include "rondo/examples/run_report.h"
#include "rondo/examples/train_options.h"
#include "rondo/examples/training_log.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/trainer/run_lock.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/data/device_batches.h"
#include "rondo/runtime/data/function_batches.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"

namespace rondo::examples {
namespace {

// Returns the mean loss per token over the validation split, or over eval_iters batches spread evenly across it. A
// batch has the rows of all ranks' batches, and each rank takes its part: the result is that of one process with the
// whole batch.
template <class LossFn>
double evaluate(nn::GPT2& model, const LossFn& loss_of, const Corpus& corpus, const TrainOptions& o,
                dist::ProcessGroup& group) {
  const NoGrad off;
  model.eval();
  const int64_t rank = group.rank(), world = group.world_size();
  const int64_t all = corpus.val.eval_batches(o.batch_size * world);
  const int64_t n = o.eval_iters > 0 ? std::min(o.eval_iters, all) : all;
  std::vector<int64_t> parts;  // the parts that this rank evaluates; it may have none of the last batch
  for (int64_t i = 0; i < n; ++i)
    if (const int64_t part = i * all / n * world + rank; part < corpus.val.eval_batches(o.batch_size))
      parts.push_back(part);
  data::FunctionBatches share(static_cast<int64_t>(parts.size()), [&](data::BatchSource::Position at) -> data::Batch {
    const data::TokenBatch batch = corpus.val.eval_batch(parts.at(static_cast<size_t>(at.batch)), o.batch_size);
    return {batch.x, batch.y};
  });
  double sum = 0, targets = 0;
  data::DeviceBatches batches(share, o.device);
  while (batches.peek()) {
    const auto counted = static_cast<double>(optim::unmasked_targets(*batches.peek()));
    const Tensor loss = loss_of(*batches.next());
    batches.read_ahead();
    sum += loss.item() * counted;
    targets += counted;
  }
  model.train();
  const Tensor sums = Tensor::from<double>({sum, targets}, {2});
  group.all_reduce(sums, dist::ReduceOp::kSum, "validation loss").wait();
  return sums[0].item() / sums[1].item();
}

std::string sample(nn::GPT2& model, const io::Tokenizer& tokenizer, const TrainOptions& o) {
  Generator generator(static_cast<uint64_t>(o.seed));
  const Tensor start = Tensor::zeros({1, 1}, {kI64});  // token 0: a newline among the characters of a text
  const std::vector<int64_t> ids =
      model.generate(start, o.sample_tokens, o.temperature, o.top_k, &generator).to_vector<int64_t>();
  return tokenizer.decode(std::vector<int32_t>(ids.begin() + 1, ids.end()));
}

// Returns the checkpoint to resume from, if the options ask for one and there is one. A new run removes the checkpoints
// of older runs from the folder.
std::optional<io::Checkpoint> find_checkpoint(const TrainOptions& o, const Job& job) {
  // A first attempt of this job may have ended before it cleared the folder of an earlier run's checkpoints.
  const bool lead = job.lead(), starts_anew = o.init_from == "scratch" && !job.goes_on(o.out_dir);
  if (starts_anew && !lead) return std::nullopt;
  if (starts_anew) {
    const size_t old = io::list_checkpoints(o.out_dir).size();
    if (old > 0)
      std::printf("Removing %zu checkpoints of an earlier run from %s (--init_from=resume goes on).\n", old,
                  o.out_dir.c_str());
    io::remove_checkpoints(o.out_dir);
    job.own(o.out_dir);
    return std::nullopt;
  }
  io::LatestCheckpoint latest = io::load_latest_checkpoint(o.out_dir);
  if (!lead) return std::move(latest.checkpoint);
  for (const auto& [path, reason] : latest.skipped) std::printf("Skipping %s: %s\n", path.c_str(), reason.c_str());
  if (latest.checkpoint) std::printf("Resuming from %s\n", latest.path.c_str());
  else std::printf("No checkpoint in %s yet: starting from scratch.\n", o.out_dir.c_str());
  return std::move(latest.checkpoint);
}

optim::StepOptions step_options_of(const TrainOptions& o) {
  optim::StepOptions step;
  if (o.grad_clip > 0) step.max_norm = o.grad_clip;
  return step;
}

// One training run. The constructor makes everything that the options ask for; run() trains.
class Training {
 public:
  Training(const OptionParser& parser, std::shared_ptr<dist::ProcessGroup> group,
           const std::optional<io::Checkpoint>& resumed);
  void run();

 private:
  void restore(const io::Checkpoint& checkpoint);
  void compile_model();
  void distribute();
  void announce();
  // Returns this rank's batch `number` of training windows. Batches are counted through all steps.
  data::Batch windows(int64_t number) const;
  Tensor loss_of(const data::Batch& batch);
  // Makes one optimizer step on this rank's share of the batch. Returns the mean loss over all ranks.
  double train_step(int64_t step);
  // For --report: runs and times steps or tokens. evaluation_step() returns the loss of its batch.
  void measure();
  double evaluation_step();
  void generate_tokens();
  void report(int64_t step, double loss);
  void save(int64_t step);
  void finish();
  void say(const std::string& text) {
    if (log_ && !text.empty()) log_->say(text);
  }

  const OptionParser& parser_;
  const TrainOptions& o_;
  const std::shared_ptr<dist::ProcessGroup> group_;
  const bool lead_;  // this is rank 0, which prints and writes files
  const uint64_t seed_;
  const int64_t first_step_;
  std::optional<RunReport> measured_;  // made first: it measures the memory of what follows
  const optim::StepOptions step_options_;
  const optim::CosineWithWarmup schedule_;
  std::optional<memory::Recording> memory_use_;
  const Corpus corpus_;
  nn::GPT2 model_;
  optim::AdamW optimizer_;
  std::optional<Compiler> compiler_;
  std::string warmed_up_;                             // a note on what --warm_up compiled
  std::optional<dist::DistributedDataParallel> ddp_;  // with several processes
  std::optional<dist::ShardedOptimizer> shards_;      // with --shard_optimizer
  std::optional<optim::UpdateAtSeams> updates_;       // with --update_at_seams
  data::FunctionBatches windows_;
  data::DeviceBatches batches_;     // reads windows_ one batch ahead of the step
  std::optional<TrainingLog> log_;  // only on rank 0
};

Training::Training(const OptionParser& parser, std::shared_ptr<dist::ProcessGroup> group,
                   const std::optional<io::Checkpoint>& resumed)
    : parser_(parser),
      o_(parser.options()),
      group_(std::move(group)),
      lead_(group_->rank() == 0),
      seed_(static_cast<uint64_t>(o_.seed)),
      first_step_(resumed ? resumed->step : 0),
      measured_(o_.report.empty() ? std::nullopt : std::make_optional<RunReport>(o_.report)),
      step_options_(step_options_of(o_)),
      schedule_{.lr = o_.learning_rate,
                .min_lr = o_.min_lr,
                .warmup_steps = o_.warmup_iters,
                .decay_steps = o_.lr_decay_iters},
      memory_use_(o_.memory_report && lead_ ? std::make_optional<memory::Recording>() : std::nullopt),
      corpus_(load_corpus(o_, lead_)),
      model_({.vocab_size = corpus_.tokenizer->vocab_size(),
              .block_size = o_.block_size,
              .n_layer = o_.n_layer,
              .n_head = o_.n_head,
              .n_embd = o_.n_embd,
              .dropout = o_.dropout,
              .bias = o_.bias},
             seed_),
      optimizer_(optim::decay_groups(
          model_.parameters(),
          optim::AdamWOptions{.lr = o_.learning_rate, .betas = {o_.beta1, o_.beta2}, .weight_decay = o_.weight_decay})),
      windows_(data::FunctionBatches::kEndless, [this](data::BatchSource::Position at) { return windows(at.batch); }),
      batches_(windows_, o_.device) {
  if (measured_ && group_->world_size() > 1) throw Error("--report is about one process");
  batches_.seek({0, first_step_ * o_.gradient_accumulation_steps});
  if (o_.dtype == "float64") model_.to(kF64);
  model_.to(o_.device);  // before the optimizer makes its states, which are on the parameters' device
  if (resumed) restore(*resumed);
  if (o_.measure == "generate" && o_.dtype == "bfloat16") model_.to(kBF16);
  if (measured_)
    measured_->start(
        {.untimed_steps = o_.untimed_steps, .steps_of_epoch = o_.max_iters - o_.untimed_steps, .device = o_.device});
  compile_model();
  distribute();
  if (lead_ && !measured_)
    log_.emplace(o_.out_dir, first_step_, o_.max_iters,
                 group_->world_size() * o_.gradient_accumulation_steps * o_.batch_size * o_.block_size);
  announce();
  say(compiler_->loaded());
  say(warmed_up_);
}

void Training::restore(const io::Checkpoint& checkpoint) {
  if (checkpoint.get<int64_t>("data_checksum") != corpus_.checksum)
    throw Error(absl::StrCat(o_.data, " is not the text that the checkpoint was trained on"));
  model_.load_state_dict(checkpoint.model);
  optimizer_.load_state_dict(checkpoint.optimizer);
}

void Training::compile_model() {
  // All windows have block_size tokens, but the last batch of a validation may have fewer rows.
  compiler_.emplace(o_.compiler, model_, Varying{.dims = {0}, .max = o_.batch_size, .tensors = 2});
  compiler_->compile(optimizer_);
  warmed_up_ = compiler_->warm_up(*group_, windows_, o_.device, {},
                                  [this](const data::Batch& batch) { loss_of(batch).backward(); });
}

void Training::distribute() {
  if (group_->world_size() > 1) {
    for (const std::string& theirs : dist::gather_texts(*group_, absl::StrCat(first_step_), 20, "first step"))
      if (theirs != absl::StrCat(first_step_))
        throw Error(absl::StrCat("one rank found a checkpoint of step ", theirs, ", another of step ", first_step_,
                                 "; do all see ", o_.out_dir, "?"));
    ddp_.emplace(model_, group_);
    if (o_.shard_optimizer) shards_.emplace(*ddp_, optimizer_);
  }
  if (!o_.update_at_seams) return;
  if (ddp_) updates_.emplace(*ddp_, optimizer_, optim::UpdateAtSeamsOptions{.step = step_options_});
  else updates_.emplace(model_, optimizer_, optim::UpdateAtSeamsOptions{.step = step_options_});
}

void Training::announce() {
  const int64_t n = group_->world_size();
  say(formatted("%d parameters, vocabulary of %d, %d training and %d validation tokens, %d threads, compile=%s, %s%s%s",
                model_.num_parameters(), corpus_.tokenizer->vocab_size(), corpus_.train.tokens().size(),
                corpus_.val.tokens().size(), num_threads(), o_.compiler.compile, o_.dtype,
                o_.device == kCPU ? "" : absl::StrCat(", ", to_string(o_.device)),
                n > 1 ? absl::StrCat(", ", n, " processes", shards_ ? ", optimizer states in shards" : "") : ""));
  if (const std::string why = why_fewer_threads(); !why.empty() && o_.threads == 0) say(why);
  if (o_.shard_optimizer && n == 1) say("--shard_optimizer: one process keeps all states.");
}

// Returns a batch of windows. All batches of a step together have the same rows, however many batches and processes
// share them.
data::Batch Training::windows(int64_t number) const {
  const int64_t step = number / o_.gradient_accumulation_steps, micro = number % o_.gradient_accumulation_steps;
  const int64_t first_row = (micro * group_->world_size() + group_->rank()) * o_.batch_size;
  const data::TokenBatch batch = corpus_.train.sample(o_.batch_size, seed_, step, first_row);
  return {batch.x, batch.y};
}

Tensor Training::loss_of(const data::Batch& batch) {
  const amp::Autocast scope(o_.dtype == "bfloat16" ? std::optional(kBF16) : std::nullopt);
  compiler_->mark(batch);
  return model_.loss(batch[0], batch[1]);
}

double Training::train_step(int64_t step) {
  seed_step(seed_, group_->rank(), step);
  optimizer_.set_lr(schedule_(step));
  const int64_t accumulate = o_.gradient_accumulation_steps;
  std::vector<dist::ScalarReduction::Term> losses;
  for (int64_t k = 0; k < accumulate; ++k) {
    std::optional<dist::DistributedDataParallel::NoSync> local;
    std::optional<optim::UpdateAtSeams::NoUpdate> held;
    if (ddp_ && k + 1 < accumulate) local.emplace(*ddp_);
    else if (updates_ && k + 1 < accumulate) held.emplace(*updates_);
    const Tensor part = loss_of(*batches_.next()) / static_cast<double>(accumulate);
    part.backward();
    losses.push_back({part.detach()});
  }
  if (ddp_) ddp_->finish();
  dist::ScalarReduction loss(*group_, dist::ReduceOp::kAverage, std::move(losses), "loss");
  optim::StepReport update;
  if (updates_) updates_->finish();
  else update = optimizer_.step(step_options_);
  optimizer_.zero_grad();
  batches_.read_ahead();
  if (update.skipped())
    say(absl::StrCat("step ", step + 1, ": a gradient is not finite; no parameter was changed (",
                     optimizer_.skipped_steps(), " such steps)"));
  if (ddp_ && o_.check_ranks) ddp_->check_parameters();
  return loss.value();  // read only here, because reading waits until the device has done all enqueued work
}

// Evaluates, logs and saves after a step, as often as the options say.
void Training::report(int64_t step, double loss) {
  const int64_t done = step + 1;
  const auto due = [&](int64_t interval) { return done % interval == 0 || done == o_.max_iters; };
  if (step == first_step_ && lead_) {
    const std::string explained = compiler_->explain(o_.out_dir);
    say(explained.empty() ? compiler_->summary() : explained);
  }
  optim::MetricsRecord record{.step = done, .loss = loss, .lr = optimizer_.lr()};
  const auto batch_loss = [this](const data::Batch& batch) { return loss_of(batch); };
  if (due(o_.eval_interval)) record.eval_loss = evaluate(model_, batch_loss, corpus_, o_, *group_);
  if (lead_ && (due(o_.log_interval) || record.eval_loss || done == 1)) log_->write(record);
  if (due(o_.checkpoint_interval)) save(done);
}

void Training::save(int64_t step) {
  nn::StateDict states;  // with shards, all ranks must call state_dict()
  if (shards_) states = shards_->state_dict(/*only_on=*/0);
  else if (lead_) states = optimizer_.state_dict();
  if (!lead_) return;
  log_->sync();
  io::Checkpoint now{.step = step, .model = model_.state_dict(), .optimizer = std::move(states), .state = {}};
  now.state["data_checksum"] = corpus_.checksum;
  parser_.store(now.state);
  io::save_checkpoint(o_.out_dir, now, {.keep = static_cast<int>(o_.keep_checkpoints)});
}

void Training::finish() {
  const std::string forgotten = compiler_->finish(*group_);
  if (!lead_) return;
  if (memory_use_) say(memory::to_string(memory_use_->report()));
  if (memory_use_ && o_.device != kCPU) {
    const AllocatorStats there = memory::stats(o_.device);
    say(formatted("That is host memory. On %s: %.1f MB in use at the peak, %.1f MB taken from the driver now",
                  to_string(o_.device), 1e-6 * static_cast<double>(there.peak_bytes),
                  1e-6 * static_cast<double>(there.bytes_reserved)));
  }
  say(forgotten);
  if (o_.sample_tokens > 0) say(absl::StrCat("\n", sample(model_, *corpus_.tokenizer, o_), "\n"));
  say(formatted("%1$s/metrics.jsonl, %1$s/loss.svg, %1$s/tensorboard/, %2$s", o_.out_dir,
                io::list_checkpoints(o_.out_dir).front()));
}

double Training::evaluation_step() {
  const NoGrad off;
  const Tensor loss = loss_of(*batches_.next());
  batches_.read_ahead();
  return loss.item();
}

// Generates two texts. The second one compiles nothing.
void Training::generate_tokens() {
  const std::vector<int64_t> prompt(kMeasuredPrompt, 1);
  int64_t made = 0;
  for (const int64_t more : {o_.max_iters - o_.untimed_steps, o_.untimed_steps}) {
    if (kMeasuredPrompt + more > o_.block_size)
      throw Error(absl::StrCat("--measure=generate: ", kMeasuredPrompt + more,
                               " tokens are more than --block_size=", o_.block_size));
    nn::generate(model_, prompt, {.max_new_tokens = more, .temperature = 0, .on_token = [&](int64_t, int64_t) {
                                    measured_->on_step({.step = ++made, .max_steps = o_.max_iters});
                                    return true;
                                  }});
  }
}

void Training::measure() {
  if (o_.measure == "generate") {
    generate_tokens();
  } else {
    model_.train(o_.measure == "train");
    for (int64_t step = first_step_; step < o_.max_iters; ++step)
      measured_->on_step({.step = step + 1,
                          .max_steps = o_.max_iters,
                          .loss = o_.measure == "train" ? train_step(step) : evaluation_step()});
  }
  measured_->write(compiler_->regions());
}

void Training::run() {
  if (measured_) return measure();
  for (int64_t step = first_step_; step < o_.max_iters; ++step) {
    if (log_) log_->begin_step();
    const double loss = train_step(step);
    if (log_) log_->end_step(static_cast<float>(loss));
    report(step, loss);
  }
  finish();
}

void train(OptionParser& parser) {
  const Job job({.device = parser.options().device,
                 .pin_threads = parser.options().pin_threads,
                 .timeout_seconds = parser.options().dist_timeout});
  const bool lead = job.lead();
  if (parser.options().data.empty() && parser.options().init_from == "scratch")
    throw Error("--data is missing: the text file to learn");
  std::optional<optim::RunLock> lock;
  if (lead) lock.emplace(parser.options().out_dir);
  const std::optional<io::Checkpoint> resumed = find_checkpoint(parser.options(), job);
  if (resumed) parser.merge(*resumed);
  if (lead && !parser.note().empty()) std::printf("%s\n", parser.note().c_str());
  if (parser.options().threads > 0) set_num_threads(static_cast<int>(parser.options().threads));
  Training(parser, job.group, resumed).run();
}

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  return rondo::examples::run_program("train_gpt", [&] {
    rondo::examples::OptionParser parser(argc, argv);
    if (parser.flags().help_wanted()) std::fputs(parser.flags().usage().c_str(), stdout);
    else if (parser.options().study.on)
      return rondo::examples::run_gpt_study(parser.options(), parser.flags().given("dtype"));
    else return rondo::dist::record_errors([&] { return rondo::examples::train(parser), 0; });
    return 0;
  });
}
