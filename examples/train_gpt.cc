// Trains a GPT-2 on a text file, on the CPU, and samples from it: start here to write a training program of your own.
//
//   train_gpt --data=tinyshakespeare.txt                    # nanoGPT's CPU setting; --help lists every option
//   train_gpt --init_from=resume --out_dir=out              # after a kill: goes on, bit for bit
//   rondorun --nproc-per-node 2 train_gpt --data=...        # two processes, each with its own --batch_size windows
//
// Nothing here depends on what ran before: weights, batches, dropout and samples are functions of (seed, step), so the
// step in a checkpoint is all the random state there is. Under rondorun every process draws its rows of the one batch,
// so that n processes train as one with n times the batch; rank 0 prints, and writes what is kept.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/compile/compile.h"
#include "rondo/dist/ddp.h"
#include "rondo/dist/failure_record.h"
#include "rondo/examples/corpus.h"
#include "rondo/examples/train_options.h"
#include "rondo/examples/training_log.h"
#include "rondo/modules/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/amp.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/io/checkpoint.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/random.h"

namespace rondo::examples {
namespace {

// As nanoGPT: matrices and embeddings decay, biases and norms do not.
optim::AdamW make_optimizer(const nn::GPT2& model, const TrainOptions& o) {
  optim::ParamGroup<optim::AdamWOptions> decayed, plain;
  for (const Tensor& p : model.parameters()) (p.rank() >= 2 ? decayed : plain).params.push_back(p);
  decayed.options = {.lr = o.learning_rate, .betas = {o.beta1, o.beta2}, .weight_decay = o.weight_decay};
  plain.options = {.lr = o.learning_rate, .betas = {o.beta1, o.beta2}, .weight_decay = 0};
  return optim::AdamW({decayed, plain});
}

// Mean loss per token over the validation split, or over eval_iters batches spread evenly across it. The ranks share
// them.
template <class LossFn>
double evaluate(nn::GPT2& model, const LossFn& loss_of, const Corpus& corpus, const TrainOptions& o,
                dist::ProcessGroup& group) {
  const NoGrad off;
  model.eval();
  const int64_t all = corpus.val.eval_batches(o.batch_size);
  const int64_t n = o.eval_iters > 0 ? std::min(o.eval_iters, all) : all;
  double sum = 0, targets = 0;
  for (int64_t i = group.rank(); i < n; i += group.world_size()) {
    const data::TokenBatch batch = corpus.val.eval_batch(i * all / n, o.batch_size);
    sum += loss_of(batch).item() * static_cast<double>(batch.targets);
    targets += static_cast<double>(batch.targets);
  }
  model.train();
  const Tensor sums = Tensor::from({sum, targets}, {2});
  group.all_reduce(sums, dist::ReduceOp::kSum, "validation loss").wait();
  return sums[0].item() / sums[1].item();
}

std::string sample(nn::GPT2& model, const io::Tokenizer& tokenizer, const TrainOptions& o) {
  // The context grows with each token: eager execution, as every new length would be compiled.
  compile::disable(model);
  Generator generator(static_cast<uint64_t>(o.seed));
  const Tensor start = Tensor::zeros({1, 1}, {kI64});  // token 0: a newline among the characters of a text
  const std::vector<int64_t> ids =
      model.generate(start, o.sample_tokens, o.temperature, o.top_k, &generator).to_vector<int64_t>();
  return tokenizer.decode(std::vector<int32_t>(ids.begin() + 1, ids.end()));
}

double average(double value, dist::ProcessGroup& group, const char* name) {
  const Tensor mean = Tensor::scalar(value);
  group.all_reduce(mean, dist::ReduceOp::kAverage, name).wait();
  return mean.item();
}

// The checkpoint to go on from, if there is one and it is wanted. A new run clears the folder of old ones.
std::optional<io::Checkpoint> find_checkpoint(const TrainOptions& o, bool lead) {
  if (o.init_from == "scratch" && !lead) return std::nullopt;
  if (o.init_from == "scratch") {
    const size_t old = io::list_checkpoints(o.out_dir).size();
    if (old > 0)
      std::printf("Removing %zu checkpoints of an earlier run from %s (--init_from=resume goes on).\n", old,
                  o.out_dir.c_str());
    io::remove_checkpoints(o.out_dir);
    return std::nullopt;
  }
  io::LatestCheckpoint latest = io::load_latest_checkpoint(o.out_dir);
  if (!lead) return std::move(latest.checkpoint);
  for (const auto& [path, reason] : latest.skipped) std::printf("Skipping %s: %s\n", path.c_str(), reason.c_str());
  if (latest.checkpoint) std::printf("Resuming from %s\n", latest.path.c_str());
  else std::printf("No checkpoint in %s yet: starting from scratch.\n", o.out_dir.c_str());
  return std::move(latest.checkpoint);
}

int train(int argc, char** argv) {
  OptionParser parser(argc, argv);
  if (parser.flags().help_wanted()) return std::fputs(parser.flags().usage().c_str(), stdout), 0;
  const std::shared_ptr<dist::ProcessGroup> group = dist::ProcessGroup::connect(
      dist::Environment::from_process(),
      {.timeout = dist::Milliseconds(std::llround(1e3 * parser.options().dist_timeout))});
  const int64_t rank = group->rank(), world_size = group->world_size();
  const bool lead = rank == 0;
  const std::optional<io::Checkpoint> resumed = find_checkpoint(parser.options(), lead);
  if (resumed) parser.merge(*resumed);
  const TrainOptions& o = parser.options();
  if (lead && !parser.note().empty()) std::printf("%s\n", parser.note().c_str());
  if (o.threads > 0) set_num_threads(static_cast<int>(o.threads));
  std::optional<memory::Recording> memory_use;
  if (o.memory_report && lead) memory_use.emplace();

  const Corpus corpus = load_corpus(o, lead);
  if (resumed && resumed->get<int64_t>("data_checksum") != corpus.checksum)
    throw Error(absl::StrCat(o.data, " is not the text that the checkpoint was trained on"));
  const auto seed = static_cast<uint64_t>(o.seed);
  nn::GPT2 model({.vocab_size = corpus.tokenizer->vocab_size(),
                  .block_size = o.block_size,
                  .n_layer = o.n_layer,
                  .n_head = o.n_head,
                  .n_embd = o.n_embd,
                  .dropout = o.dropout,
                  .bias = o.bias},
                 seed);
  optim::AdamW optimizer = make_optimizer(model, o);
  if (resumed) {
    model.load_state_dict(resumed->model);
    optimizer.load_state_dict(resumed->optimizer);
  }
  const auto save = [&](int64_t step) {
    io::Checkpoint now{.step = step, .model = model.state_dict(), .optimizer = optimizer.state_dict(), .state = {}};
    now.state["data_checksum"] = corpus.checksum;
    parser.store(now.state);
    return io::save_checkpoint(o.out_dir, now, {.keep = static_cast<int>(o.keep_checkpoints)});
  };
  std::optional<compile::Regions> regions;
  if (o.compile == "regions") {
    regions = compile::compile_regions(model);
    optim::compile(optimizer);
  }

  const int64_t first_step = resumed ? resumed->step : 0, accumulate = o.gradient_accumulation_steps;
  std::optional<dist::DistributedDataParallel> ddp;
  if (world_size > 1) {
    for (const std::string& theirs : dist::gather_texts(*group, absl::StrCat(first_step), 20, "first step"))
      if (theirs != absl::StrCat(first_step))
        throw Error(absl::StrCat("one rank found a checkpoint of step ", theirs, ", another of step ", first_step,
                                 "; do all see ", o.out_dir, "?"));
    ddp.emplace(model, group);
  }
  const optim::StepOptions step_options{.max_norm = o.grad_clip > 0 ? o.grad_clip
                                                                    : std::numeric_limits<double>::infinity()};
  std::optional<optim::UpdateAtSeams> updates;
  if (o.update_at_seams && ddp) updates.emplace(*ddp, optimizer, optim::UpdateAtSeamsOptions{.step = step_options});
  else if (o.update_at_seams) updates.emplace(model, optimizer, optim::UpdateAtSeamsOptions{.step = step_options});
  std::optional<TrainingLog> log;  // of rank 0
  if (lead) log.emplace(o.out_dir, first_step, o.max_iters, world_size * accumulate * o.batch_size * o.block_size);
  const auto say = [&log](const std::string& text) {
    if (log) log->say(text);
  };
  say(absl::StrFormat(
      "%d parameters, vocabulary of %d, %d training and %d validation tokens, %d threads, compile=%s, %s%s",
      model.num_parameters(), corpus.tokenizer->vocab_size(), corpus.train.tokens().size(), corpus.val.tokens().size(),
      num_threads(), o.compile, o.dtype, world_size > 1 ? absl::StrCat(", ", world_size, " processes") : ""));

  const std::optional<DType> autocast = o.dtype == "bfloat16" ? std::optional(kBF16) : std::nullopt;
  const auto loss_of = [&](const data::TokenBatch& batch) {
    const amp::Autocast scope(autocast);
    return model.loss(batch.x, batch.y);
  };
  const optim::CosineWithWarmup schedule{
      .lr = o.learning_rate, .min_lr = o.min_lr, .warmup_steps = o.warmup_iters, .decay_steps = o.lr_decay_iters};

  for (int64_t step = first_step; step < o.max_iters; ++step) {
    if (log) log->begin_step();
    // Each rank has dropout masks of its own.
    default_generator().set_state(seed + static_cast<uint64_t>(rank) * 0x9E3779B97F4A7C15u, static_cast<uint64_t>(step)
                                                                                                << 32);
    optimizer.set_lr(schedule(step));
    double loss = 0;
    for (int64_t k = 0; k < accumulate; ++k) {
      std::optional<dist::DistributedDataParallel::NoSync> local;
      std::optional<optim::UpdateAtSeams::NoUpdate> held;
      if (ddp && k + 1 < accumulate) local.emplace(*ddp);
      else if (updates && k + 1 < accumulate) held.emplace(*updates);
      const data::TokenBatch batch = corpus.train.sample(o.batch_size, seed, step * accumulate + k,
                                                         rank * o.batch_size);
      const Tensor part = loss_of(batch) / static_cast<double>(accumulate);
      part.backward();
      loss += part.item();
    }
    if (ddp) {
      ddp->finish();
      loss = average(loss, *group, "loss");
    }
    if (updates) updates->finish();
    else if (optimizer.step(step_options).skipped)
      say(absl::StrCat("step ", step + 1, ": a gradient is not finite; no parameter was changed (",
                       optimizer.skipped_steps(), " such steps)"));
    optimizer.zero_grad();
    if (ddp && o.check_ranks) ddp->check_parameters();
    if (log) log->end_step(static_cast<float>(loss));

    const int64_t done = step + 1;
    const auto due = [&](int64_t interval) { return done % interval == 0 || done == o.max_iters; };
    if (step == first_step && regions) say(regions->summary());
    Record record{.step = done, .loss = static_cast<float>(loss), .lr = optimizer.lr()};
    if (due(o.eval_interval)) record.val_loss = evaluate(model, loss_of, corpus, o, *group);
    if (!lead) continue;
    if (due(o.log_interval) || record.val_loss || done == 1) log->write(record);
    if (due(o.checkpoint_interval)) log->sync(), save(done);
  }

  if (!lead) return 0;
  if (memory_use) say(memory::to_string(memory_use->report()));
  if (o.sample_tokens > 0) say(absl::StrCat("\n", sample(model, *corpus.tokenizer, o), "\n"));
  say(absl::StrFormat("%1$s/metrics.jsonl, %1$s/loss.svg, %1$s/tensorboard/, %2$s", o.out_dir,
                      io::list_checkpoints(o.out_dir).front()));
  return 0;
}

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  try {
    return rondo::dist::record_errors([&] { return rondo::examples::train(argc, argv); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
}
