// The options of train_gpt. Options that nanoGPT has, too, have nanoGPT's names, and its default values for a CPU.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/examples/compiler.h"
#include "rondo/examples/flags.h"
#include "rondo/examples/study.h"
#include "rondo/runtime/checkpoint/checkpoint.h"

namespace rondo::examples {

struct TrainOptions {
  std::string data;
  std::string tokenizer = "char";
  std::string vocab_dir = ".";
  std::string out_dir = "out";
  std::string init_from = "scratch";

  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;
  int64_t block_size = 64;
  bool bias = true;  // as in GPT-2. With false, nanoGPT's default, the final loss is about 0.015 higher here
  double dropout = 0;

  int64_t batch_size = 12;
  int64_t gradient_accumulation_steps = 1;
  int64_t max_iters = 2000;
  double learning_rate = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_iters = 100;
  int64_t lr_decay_iters = 0;  // 0: as max_iters
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double grad_clip = 1;
  bool update_at_seams = false;
  bool shard_optimizer = false;
  int64_t seed = 1337;

  Device device;
  CompilerOptions compiler;
  std::string dtype = "float32";
  std::string report, measure = "train";  // see run_report.h
  int64_t untimed_steps = 10;
  StudyOptions study;
  int64_t threads = 0;
  bool check_ranks = false;
  bool memory_report = false;
  double dist_timeout = 300;
  bool pin_threads = true;

  int64_t eval_interval = 250;
  int64_t eval_iters = 0;
  int64_t log_interval = 10;
  int64_t checkpoint_interval = 0;  // 0: as eval_interval
  int64_t keep_checkpoints = 2;
  int64_t sample_tokens = 500;
  double temperature = 0.8;
  int64_t top_k = 200;
};

// The options of a run. They come from the command line, or from a checkpoint if the command line does not give them.
class OptionParser {
 public:
  // Throws Error for an unknown option and for a value out of range.
  explicit OptionParser(int argc, char** argv);
  const Flags& flags() const { return flags_; }
  // Returns the checked options. If 0 means "as another option", the 0 is replaced by the value of that option.
  const TrainOptions& options() const { return options_; }

  // Takes over the options of the run that is resumed, unless the command line gives them. Throws Error if the command
  // line asks for another model or tokenizer than the checkpoint has.
  void merge(const io::Checkpoint& checkpoint);
  // Writes the options into a checkpoint's state; merge() reads them back.
  void store(io::Scalars& state) const;
  // Returns a note for the user, or "".
  const std::string& note() const { return note_; }

 private:
  void check_and_finish();

  TrainOptions options_;
  Flags flags_;
  std::string note_;
};

}  // namespace rondo::examples
