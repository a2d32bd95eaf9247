// Fine-tunes a published language model on your text, and shows what it writes before and after.
//
//   finetune --model_name_or_path=models/gpt2 --train_file=book.txt --output_dir=tuned       # LoRA, for PEFT too
//   finetune --model_name_or_path=models/qwen --train_file=chats.jsonl --output_dir=tuned   # its chat template
//   finetune ... --resume_from_checkpoint=true               # after Ctrl-C or a kill: the same losses, bit for bit
//   finetune ... --merge                                     # a whole model too, in tuned/merged
//   finetune ... --device=cuda                               # on the first GPU; cuda:1 is the second
//   rondorun --nproc-per-node 2 finetune ...                 # two processes share the batches; the same files
//   finetune --help                                          # Hugging Face's names
//
// The folder of the model is as Hugging Face publishes it: config.json, model.safetensors, tokenizer.json. A line of a
// .jsonl file has "text", "prompt" and "completion", or "messages". Into --output_dir go checkpoints, metrics.jsonl,
// runs/ (TensorBoard), and at the end an adapter (nn::load_adapter and PEFT read it), or with --full the model.
// --merge writes the model with the adapter merged into it as well, for programs that know no adapters.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/trainer_replicas.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/examples/compiler.h"
#include "rondo/examples/finetune_data.h"
#include "rondo/examples/finetune_options.h"
#include "rondo/examples/job.h"
#include "rondo/examples/run_control.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {
namespace {

// ---- Printing progress and samples

struct Console : optim::Callback {
  void on_begin(const optim::Progress& now) override {
    if (now.step > 0) std::printf("going on after step %lld\n", static_cast<long long>(now.step));
  }
  void on_log(const optim::Progress& now) override {
    say(formatted("step %5d/%d  loss %.4f  lr %.2e  %6.0f tokens/s", now.step, now.max_steps, now.loss, now.lr,
                  now.targets_per_second));
  }
  void on_evaluate(const optim::Progress& now) override {
    say(formatted("step %5d/%d  validation loss %.4f", now.step, now.max_steps, *now.eval_loss));
  }
  bool on_save_error(const optim::Progress& now, const FileError& error) override {
    say(formatted("step %d: no checkpoint: %s", now.step, error.what()));
    return now.step < now.max_steps;  // there may be room for the next checkpoint
  }
  static void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
};

// ---- The run

class Finetuning {
 public:
  Finetuning(const FinetuneOptions& o, const Job& job)
      : o_(o),
        job_(job),
        tokenizer_(text::AutoTokenizer::from_pretrained(o.model_name_or_path)),
        model_(nn::AutoModelForCausalLM::from_pretrained(o.model_name_or_path,
                                                         {.allow_unknown_fields = o.allow_unknown_fields})),
        data_(o, tokenizer_, vocab_size()) {
    for (const std::string& notice : data_.notices) job.say(notice);
    manual_seed(static_cast<uint64_t>(o.seed));
    model_->to(o.device);
    if (!o.full) {
      const nn::LoraReport report = nn::add_lora(*model_, {.rank = o.lora_r,
                                                           .alpha = o.lora_alpha,
                                                           .dropout = o.lora_dropout,
                                                           .targets = absl::StrSplit(o.lora_target_modules, ','),
                                                           .mergeable = o.merge});
      job.say(formatted("%d modules adapted: %d of %d parameters are trained", report.targets.size(), report.trainable,
                        report.total));
    }
    if (o.device != kCPU) job.say(absl::StrCat("The model is on ", to_string(o.device)));
    compiler_.emplace(o.compiler, *model_, Varying{.dims = {1}, .max = o.block_size, .tensors = 3, .is_padded = true});
    job.say(compiler_->loaded());
  }

  // Fine-tunes the model. Returns false if the user cancelled.
  bool run() {
    optim::AdamW& optimizer = optimizer_.emplace(
        model_->parameters(),
        optim::AdamWOptions{
            .lr = o_.learning_rate, .betas = {o_.adam_beta1, o_.adam_beta2}, .weight_decay = o_.weight_decay});
    compiler_->compile(optimizer);
    data::ExampleBatches train(data_.train, in_buckets(o_.compiler, {.batch_size = o_.per_device_train_batch_size,
                                                                     .max_length = o_.block_size,
                                                                     .seed = static_cast<uint64_t>(o_.seed),
                                                                     .pack = o_.packing}));
    data::ExampleBatches validation(
        data_.validation,
        in_buckets(o_.compiler,
                   {.batch_size = o_.per_device_eval_batch_size, .max_length = o_.block_size, .shuffle = false}));
    optim::TrainerOptions options = trainer_options(o_, train.size());
    const std::string warmed_up = compiler_->warm_up(*job_.group, train, o_.device, train.sizes(),
                                                     [&](const data::Batch& batch) {
                                                       const amp::Autocast lower(options.autocast);
                                                       loss_of(batch).backward();
                                                     });
    job_.say(warmed_up);
    if (job_.several()) {
      job_.say(absl::StrCat(job_.group->world_size(), " processes share the batches"));
      ddp_.emplace(*model_, job_.group);
      if (o_.shard_optimizer) shards_.emplace(*ddp_, optimizer);
      replicas_.emplace(*ddp_, dist::TrainerReplicasOptions{.check_parameters = o_.check_ranks,
                                                            .shards = shards_ ? &*shards_ : nullptr});
      options.replicas = &*replicas_;
    }
    optim::Trainer trainer(
        *model_, optimizer,
        [this](const data::Batch& batch) {
          compiler_->mark(batch);
          return loss_of(batch);
        },
        train, validation, options);
    OwnsFolder owner(job_, o_.output_dir);
    Console console;
    ExplainsFirstStep explains(*compiler_, job_, o_.output_dir);
    optim::MetricsLog metrics(o_.output_dir + "/metrics.jsonl");
    optim::TensorBoardLog board(o_.output_dir + "/runs");
    if (job_.lead()) {
      trainer.add_callback(owner);
      trainer.add_callback(console);
      trainer.add_callback(explains);
      trainer.add_callback(metrics);
      trainer.add_callback(board);
    }
    resume(trainer, o_, job_);
    show("before");
    const std::optional<optim::TrainResult> result = examples::train(trainer, job_);
    if (!result) return false;
    if (result->reason == optim::StopReason::kEarlyStopped)
      job_.say(formatted("stopped early: the validation loss was lowest after step %d", result->last.best_step));
    if (job_.lead()) write_results();
    return true;
  }

 private:
  void write_results() {
    replicas_.reset();
    shards_.reset();
    ddp_.reset();  // the model is no longer shared with other processes
    job_.say(compiler_->finish(*job_.group));
    show("after");
    if (o_.full) {
      model_.save_pretrained(o_.output_dir);
      text::AutoTokenizer::copy_files(o_.model_name_or_path, o_.output_dir);
    } else nn::save_adapter(*model_, o_.output_dir, {.base_model_name_or_path = o_.model_name_or_path});
    std::printf("%s is in %s\n", o_.full ? "The model" : "The adapter", o_.output_dir.c_str());
    if (o_.merge) save_merged(o_.output_dir + "/merged");
  }

  // Returns the vocabulary's size. Throws Error if examples may be longer than the model's positions.
  int64_t vocab_size() const {
    if (o_.block_size > model_.max_length())
      throw Error(absl::StrCat("--block_size=", o_.block_size,
                               " is longer than what this model reads: ", model_.max_length(), " tokens"));
    return model_.vocab_size();
  }

  // Returns the loss of a batch: {x, y}, and with --packing also positions, which keep the examples of a row apart.
  Tensor loss_of(const data::Batch& batch) {
    return batch.size() > 2 ? model_.loss(batch[0], batch[1], batch[2]) : model_.loss(batch[0], batch[1]);
  }

  // Saves into a folder of its own: a model beside an adapter is loaded with the adapter, which would then count twice.
  void save_merged(const std::string& folder) {
    nn::merge_and_unload(*model_);
    model_.save_pretrained(folder);
    text::AutoTokenizer::copy_files(o_.model_name_or_path, folder);
    std::printf("The model with the adapter merged into it is in %s\n", folder.c_str());
  }

  void show(const char* when) {
    if (o_.max_new_tokens == 0 || !job_.lead()) return;
    Generator generator(static_cast<uint64_t>(o_.seed));
    const nn::Generation made = nn::generate(model_.causal_lm(),
                                             std::vector<int64_t>(data_.prompt.begin(), data_.prompt.end()),
                                             {.max_new_tokens = o_.max_new_tokens,
                                              .temperature = 0.8,
                                              .top_k = 50,
                                              .stop_tokens = data_.stop_tokens,
                                              .generator = &generator});
    std::vector<int32_t> ids = data_.prompt;
    ids.insert(ids.end(), made.tokens.begin(), made.tokens.end());
    std::printf("---- %s\n%s\n----\n", when, tokenizer_.decode(ids).c_str());
  }

  const FinetuneOptions& o_;
  const Job& job_;
  const text::PreTrainedTokenizer tokenizer_;
  nn::AutoModelForCausalLM model_;
  const FinetuneData data_;
  std::optional<Compiler> compiler_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<dist::DistributedDataParallel> ddp_;  // with several processes
  std::optional<dist::ShardedOptimizer> shards_;      // with --shard_optimizer
  std::optional<dist::TrainerReplicas> replicas_;
};

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  using namespace rondo::examples;
  return run_program("finetune", [&] {
    FinetuneOptions options;
    Flags flags = flags_of(options);
    flags.parse({argv + 1, argv + argc});
    if (flags.help_wanted()) {
      std::printf("%s", flags.usage().c_str());
      return 0;
    }
    check(options);
    const std::string note = complete(options.compiler, options.device);
    return rondo::dist::record_errors([&] {
      const Job job(job_options(options));
      job.say(note);
      return Finetuning(options, job).run() ? 0 : 130;
    });
  });
}
