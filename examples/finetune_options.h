// The options of finetune. Names and most values are those of Hugging Face's TrainingArguments, LoraConfig, SFTConfig.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/examples/compiler.h"
#include "rondo/examples/flags.h"
#include "rondo/examples/run_control.h"
#include "rondo/optim/trainer/trainer.h"

namespace rondo::examples {

struct FinetuneOptions : RunOptions {
  FinetuneOptions() {
    output_dir = "tuned";
    logging_steps = 10;
  }
  std::string model_name_or_path, train_file, validation_file;
  bool allow_unknown_fields = false;
  int64_t validation_split_percentage = 10;

  std::string chat_template;
  int64_t block_size = 128;
  bool packing = false, completion_only_loss = true;

  double num_train_epochs = 3;
  int64_t max_steps = -1, per_device_train_batch_size = 4, per_device_eval_batch_size = 8;
  double learning_rate = 1e-3, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999;
  std::string lr_scheduler_type = "linear";
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  int64_t eval_steps = 0;
  bool eval_on_start = true;
  int64_t early_stopping_patience = 0;
  double early_stopping_threshold = 0;
  bool load_best_model_at_end = false, ignore_data_skip = false;
  bool bf16 = false, fp16 = false, shard_optimizer = false;
  CompilerOptions compiler;

  bool full = false, merge = false;
  int64_t lora_r = 8;
  double lora_alpha = 16, lora_dropout = 0;
  std::string lora_target_modules = "all-linear";

  std::string prompt;
  int64_t max_new_tokens = 60;
};

Flags flags_of(FinetuneOptions& options);
// Throws Error, which names the flags, if they do not go together.
void check(const FinetuneOptions& options);
// Returns the options for a Trainer in one process. `batches_per_epoch`: of its training data.
optim::TrainerOptions trainer_options(const FinetuneOptions& options, int64_t batches_per_epoch);

}  // namespace rondo::examples
