#include "rondo/examples/finetune_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/optim/schedule.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {
namespace {

optim::Optimizer::Schedule schedule_of(const FinetuneOptions& o, int64_t steps) {
  const double lr = o.learning_rate;
  const int64_t warmup = o.warmup_steps > 0
                             ? o.warmup_steps
                             : static_cast<int64_t>(std::ceil(o.warmup_ratio * static_cast<double>(steps)));
  if (o.lr_scheduler_type == "linear")
    return optim::LinearWithWarmup{.lr = lr, .warmup_steps = warmup, .total_steps = steps};
  if (o.lr_scheduler_type == "cosine")
    return optim::CosineWithWarmup{.lr = lr, .min_lr = 0, .warmup_steps = warmup, .decay_steps = steps};
  if (o.lr_scheduler_type == "constant") return optim::Constant{.lr = lr};
  return optim::ConstantWithWarmup{.lr = lr, .warmup_steps = warmup};
}

}  // namespace

Flags flags_of(FinetuneOptions& o) {
  Flags flags("finetune", "Fine-tunes a published language model on text, prompts or chats.");
  flags.add("model_name_or_path", &o.model_name_or_path, "folder with config.json, model.safetensors, tokenizer.json");
  flags.add("allow_unknown_fields", &o.allow_unknown_fields,
            "ignore fields of config.json that are not known here: they may change what the model computes");
  flags.add("train_file", &o.train_file, ".txt, or .jsonl whose lines have text, prompt and completion, or messages");
  flags.add("validation_file", &o.validation_file, "as train_file; empty: a part of it");
  flags.add("validation_split_percentage", &o.validation_split_percentage, "the last part of train_file");
  flags.add("ignore_data_skip", &o.ignore_data_skip,
            "resume on other data, or with batches that do not fit the checkpoint: from the data's beginning");

  flags.add("chat_template", &o.chat_template,
            "for messages: chatml, llama3, zephyr, or a file: .jinja, or text (data/chat_template.h); empty: the "
            "model's own");
  flags.add("block_size", &o.block_size, "tokens of an example at most; longer texts are cut into several");
  flags.add("packing", &o.packing, "several examples in a row of block_size tokens; none sees another");
  flags.add("completion_only_loss", &o.completion_only_loss, "prompts carry no loss");

  flags.add("num_train_epochs", &o.num_train_epochs, "passes over the training data");
  flags.add("max_steps", &o.max_steps, "optimizer steps; above 0, num_train_epochs is not used");
  flags.add("per_device_train_batch_size", &o.per_device_train_batch_size, "rows of a batch");
  flags.add("per_device_eval_batch_size", &o.per_device_eval_batch_size, "rows of a batch of validation");
  flags.add("learning_rate", &o.learning_rate, "the highest one");
  flags.add("lr_scheduler_type", &o.lr_scheduler_type, "how it moves",
            {"linear", "cosine", "constant", "constant_with_warmup"});
  flags.add("warmup_steps", &o.warmup_steps, "steps of linear warm-up");
  flags.add("warmup_ratio", &o.warmup_ratio, "the same as a share of all steps");
  flags.add("weight_decay", &o.weight_decay, "of AdamW");
  flags.add("adam_beta1", &o.adam_beta1, "of AdamW");
  flags.add("adam_beta2", &o.adam_beta2, "of AdamW");
  flags.add("eval_steps", &o.eval_steps, "steps between two validations; 0: an epoch");
  flags.add("eval_on_start", &o.eval_on_start, "validate before the first step");
  flags.add("early_stopping_patience", &o.early_stopping_patience,
            "stop after so many validations without gain; 0: off");
  flags.add("early_stopping_threshold", &o.early_stopping_threshold, "what counts as a gain");
  flags.add("load_best_model_at_end", &o.load_best_model_at_end, "end with the parameters of the best validation");
  flags.add("bf16", &o.bf16, "products in bfloat16");
  flags.add("fp16", &o.fp16, "products in float16, with a loss scale");
  add_options(flags, o, "checkpoints, logs, and at the end the adapter or model",
              "of batches, adapters, dropout and samples");
  add_options(flags, o.compiler);
  flags.add("shard_optimizer", &o.shard_optimizer,
            "under rondorun: each process keeps its share of the optimizer's states");

  flags.add("full", &o.full, "train all weights instead of an adapter");
  flags.add("lora_r", &o.lora_r, "rank of the adapter");
  flags.add("lora_alpha", &o.lora_alpha, "its scaling is lora_alpha / lora_r");
  flags.add("lora_dropout", &o.lora_dropout, "probability, for what goes into the adapter");
  flags.add("lora_target_modules", &o.lora_target_modules, "names with commas between, or all-linear");
  flags.add("merge", &o.merge, "write the whole model too, with the adapter merged into it: output_dir/merged");

  flags.add("prompt", &o.prompt, "what the samples begin with; empty: how the first validation example begins");
  flags.add("max_new_tokens", &o.max_new_tokens, "length of the samples; 0: none");
  return flags;
}

void check(const FinetuneOptions& o) {
  if (o.model_name_or_path.empty() || o.train_file.empty())
    throw Error("--model_name_or_path and --train_file are needed; --help says what they are");
  if (o.full && o.merge) throw Error("--merge joins an adapter to its base, and with --full there is no adapter");
  if (o.bf16 && o.fp16) throw Error("--bf16 and --fp16 exclude each other");
  if (o.validation_split_percentage < 1 || o.validation_split_percentage > 99)
    throw Error(absl::StrCat("--validation_split_percentage=", o.validation_split_percentage, " is outside [1, 99]"));
  if (o.block_size < 1) throw Error(absl::StrCat("--block_size=", o.block_size, " must be positive"));
  if (!(o.warmup_ratio >= 0 && o.warmup_ratio <= 1) || o.warmup_steps < 0)
    throw Error("--warmup_steps must not be negative, and --warmup_ratio lies in [0, 1]");
  check(static_cast<const RunOptions&>(o));
}

optim::TrainerOptions trainer_options(const FinetuneOptions& o, int64_t batches_per_epoch) {
  optim::TrainerOptions options = trainer_options_of(o);
  options.max_steps = o.max_steps;
  options.num_train_epochs = o.num_train_epochs;
  options.count_targets = optim::unmasked_targets;
  options.eval_steps = o.eval_steps;
  options.eval_on_start = o.eval_on_start;
  options.early_stopping_patience = o.early_stopping_patience;
  options.early_stopping_threshold = o.early_stopping_threshold;
  options.load_best_model_at_end = o.load_best_model_at_end;
  options.ignore_data_skip = o.ignore_data_skip;
  if (o.bf16) options.autocast = kBF16;
  if (o.fp16) options.autocast = kF16;
  options.lr_schedules = {schedule_of(o, optim::planned_steps(options, batches_per_epoch))};
  return options;
}

}  // namespace rondo::examples
