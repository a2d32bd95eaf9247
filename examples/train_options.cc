#include "rondo/examples/train_options.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {
namespace {

constexpr const char* kPrefix = "option.";

// Options that a resumed run must take from the checkpoint: its tensors, or the meaning of its token ids, depend on
// them.
const std::set<std::string> kFixed = {"n_layer", "n_head", "n_embd", "block_size", "bias", "tokenizer"};
// Options that belong to one process, not to the run: checkpoints do not contain them.
const std::set<std::string> kPerProcess = {
    "study",       "study_rows",  "study_steps",  "study_rounds",  "study_timeout", "init_from",       "out_dir",
    "check_ranks", "pin_threads", "dist_timeout", "memory_report", "device",        "shard_optimizer", "explain",
    "warm_up",     "load_code",   "save_code",    "report",        "measure",       "untimed_steps"};

}  // namespace

OptionParser::OptionParser(int argc, char** argv)
    : flags_("train_gpt", "Trains a GPT on a text file. Option names and defaults are nanoGPT's.") {
  TrainOptions& o = options_;
  flags_.add("data", &o.data, "text file; its last tenth is for validation");
  flags_.add("tokenizer", &o.tokenizer, "what a token is", {"char", "byte", "gpt2"});
  flags_.add("vocab_dir", &o.vocab_dir, "for gpt2: folder with encoder.json and vocab.bpe");
  flags_.add("out_dir", &o.out_dir, "metrics, loss curve, TensorBoard events, checkpoints");
  flags_.add("init_from", &o.init_from, "resume: go on from the last checkpoint in out_dir", {"scratch", "resume"});

  flags_.add("n_layer", &o.n_layer, "blocks");
  flags_.add("n_head", &o.n_head, "attention heads");
  flags_.add("n_embd", &o.n_embd, "channels");
  flags_.add("block_size", &o.block_size, "tokens in a window");
  flags_.add("bias", &o.bias, "biases in Linear and LayerNorm");
  flags_.add("dropout", &o.dropout, "probability");

  flags_.add("batch_size", &o.batch_size, "windows in a batch of one process");
  flags_.add("gradient_accumulation_steps", &o.gradient_accumulation_steps, "batches in a step");
  flags_.add("max_iters", &o.max_iters, "optimizer steps");
  flags_.add("learning_rate", &o.learning_rate, "after warm-up");
  flags_.add("min_lr", &o.min_lr, "at the end of the cosine");
  flags_.add("warmup_iters", &o.warmup_iters, "steps of linear warm-up");
  flags_.add("lr_decay_iters", &o.lr_decay_iters, "where the cosine ends; 0: max_iters");
  flags_.add("beta1", &o.beta1, "AdamW");
  flags_.add("beta2", &o.beta2, "AdamW");
  flags_.add("weight_decay", &o.weight_decay, "AdamW, parameters of rank 2 and more");
  flags_.add("grad_clip", &o.grad_clip, "norm of all gradients together; 0: off");
  flags_.add("update_at_seams", &o.update_at_seams,
             "update each block during backward: less memory; needs --grad_clip=0");
  flags_.add("shard_optimizer", &o.shard_optimizer,
             "under rondorun: each process keeps its share of the optimizer's states");
  flags_.add("seed", &o.seed, "of weights, batches, dropout and samples");

  flags_.add("device", &o.device,
             "cpu, cuda or cuda:1: where it trains; under rondorun cuda is each rank's own; a resumed run does not "
             "remember it");
  add_options(flags_, o.compiler);
  flags_.add("dtype", &o.dtype, "bfloat16: autocast; float64: of all, to compare with",
             {"float32", "bfloat16", "float64"});
  flags_.add("threads", &o.threads, "0: all cores, or what rondorun gives");
  flags_.add("check_ranks", &o.check_ranks, "under rondorun: compare the parameters of all ranks after every step");
  flags_.add("memory_report", &o.memory_report, "where the memory went, at the end");
  flags_.add("dist_timeout", &o.dist_timeout, "under rondorun: seconds that a rank may be late");
  flags_.add("pin_threads", &o.pin_threads, "several ranks on GPUs: threads run on the cores near the rank's GPU");

  flags_.add("eval_interval", &o.eval_interval, "steps between evaluations");
  flags_.add("eval_iters", &o.eval_iters,
             "validation batches, of all processes together; 0: the whole validation split");
  flags_.add("log_interval", &o.log_interval, "steps between lines of metrics.jsonl");
  flags_.add("checkpoint_interval", &o.checkpoint_interval, "steps between checkpoints; 0: eval_interval");
  flags_.add("keep_checkpoints", &o.keep_checkpoints, "how many stay");
  flags_.add("sample_tokens", &o.sample_tokens, "tokens to sample at the end");
  flags_.add("temperature", &o.temperature, "of the sample");
  flags_.add("top_k", &o.top_k, "of the sample");

  flags_.add("report", &o.report,
             "a file: speed, the first steps, compilations, memory and loss, as JSON; nothing else is written");
  flags_.add("measure", &o.measure, "what --report is about: steps of training, of evaluation, or tokens of one text",
             {"train", "infer", "generate"});
  flags_.add("untimed_steps", &o.untimed_steps, "of --report and --study: the first ones, that compile");
  o.study.steps = 20;
  add_options(flags_, o.study, "out_dir");

  flags_.parse(std::vector<std::string>(argv + 1, argv + argc));
  if (o.study.on) {
    const auto fill = [&](const char* name, int64_t& option, int64_t value) {
      if (!flags_.given(name)) option = value;
    };
    fill("n_layer", o.n_layer, 6);
    fill("n_head", o.n_head, 6);
    fill("n_embd", o.n_embd, 384);
    fill("block_size", o.block_size, 256);
    fill("batch_size", o.batch_size, 4);
    if (flags_.given("data")) throw Error("--study has a random text: leave out --data");
    if (flags_.given("max_iters")) throw Error("--study: --study_steps says how many steps are timed");
  }
  check_and_finish();
}

void OptionParser::check_and_finish() {
  TrainOptions& o = options_;
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least) throw Error(absl::StrCat("--", name, "=", value, ": must be at least ", least));
  };
  at_least("n_layer", o.n_layer, 1);
  at_least("n_head", o.n_head, 1);
  at_least("n_embd", o.n_embd, 1);
  at_least("block_size", o.block_size, 1);
  at_least("batch_size", o.batch_size, 1);
  at_least("gradient_accumulation_steps", o.gradient_accumulation_steps, 1);
  at_least("max_iters", o.max_iters, 1);
  at_least("warmup_iters", o.warmup_iters, 0);
  at_least("lr_decay_iters", o.lr_decay_iters, 0);
  at_least("seed", o.seed, 0);
  at_least("threads", o.threads, 0);
  const auto within = [](const char* name, double value, double least, double below) {
    if (!(value >= least && value < below))
      throw Error(absl::StrCat("--", name, "=", value, ": must be at least ", least,
                               std::isfinite(below) ? absl::StrCat(" and below ", below) : ""));
  };
  constexpr double kAny = std::numeric_limits<double>::infinity();
  within("learning_rate", o.learning_rate, 0, kAny);
  within("min_lr", o.min_lr, 0, kAny);
  within("beta1", o.beta1, 0, 1);
  within("beta2", o.beta2, 0, 1);
  within("weight_decay", o.weight_decay, 0, kAny);
  within("grad_clip", o.grad_clip, 0, kAny);
  within("dropout", o.dropout, 0, 1);
  within("temperature", o.temperature, 0, kAny);
  if (!(o.dist_timeout > 0 && o.dist_timeout <= 1e6))
    throw Error(absl::StrCat("--dist_timeout=", o.dist_timeout, ": must be above 0 and at most 1e6"));
  at_least("eval_interval", o.eval_interval, 1);
  at_least("eval_iters", o.eval_iters, 0);
  at_least("log_interval", o.log_interval, 1);
  at_least("checkpoint_interval", o.checkpoint_interval, 0);
  at_least("keep_checkpoints", o.keep_checkpoints, 1);
  at_least("sample_tokens", o.sample_tokens, 0);
  at_least("top_k", o.top_k, 0);
  at_least("untimed_steps", o.untimed_steps, 1);
  at_least("study_steps", o.study.steps, 1);
  if (o.measure != "train" && o.report.empty()) throw Error("--measure needs --report, the file for what is measured");
  if (!o.report.empty()) at_least("max_iters", o.max_iters, 2 * o.untimed_steps);
  if (o.n_embd % o.n_head != 0)
    throw Error(absl::StrCat("--n_embd=", o.n_embd, " is not a multiple of --n_head=", o.n_head));
  if (o.update_at_seams && o.grad_clip > 0)
    throw Error(absl::StrCat("--update_at_seams: --grad_clip=", o.grad_clip,
                             " needs the norm of all gradients before the first block is "
                             "updated; pass --grad_clip=0"));

  if (!o.data.empty()) o.data = std::filesystem::absolute(o.data);  // may be resumed from another folder
  if (o.lr_decay_iters == 0) o.lr_decay_iters = o.max_iters;
  if (o.checkpoint_interval == 0) o.checkpoint_interval = o.eval_interval;
  if (const std::string note = complete(o.compiler, o.device); !note.empty()) note_ = note;
}

void OptionParser::store(io::Scalars& state) const {
  for (const auto& [name, value] : flags_.values())
    if (!kPerProcess.contains(name)) state[absl::StrCat(kPrefix, name)] = value;
}

void OptionParser::merge(const io::Checkpoint& checkpoint) {
  const std::map<std::string, std::string> wanted = flags_.values();
  for (const auto& [name, value] : wanted) {
    const auto stored = checkpoint.state.find(kPrefix + name);
    if (stored == checkpoint.state.end()) continue;
    const std::string& before = std::get<std::string>(stored->second);
    if (!flags_.given(name)) flags_.set(name, before);
    else if (value != before && kFixed.contains(name))
      throw Error(absl::StrCat("--", name, "=", value, ": the checkpoint in ", options_.out_dir, " has ", before));
  }
  // A longer run decays over its new length, unless this command line or that of the earlier run has set
  // lr_decay_iters.
  const auto stored = [&](const char* name) { return checkpoint.state.find(absl::StrCat(kPrefix, name)); };
  const auto decay = stored("lr_decay_iters"), iters = stored("max_iters"), none = checkpoint.state.end();
  const bool decay_followed = decay == none || (iters != none && decay->second == iters->second);
  if (flags_.given("max_iters") && !flags_.given("lr_decay_iters") && decay_followed)
    options_.lr_decay_iters = options_.max_iters;
  check_and_finish();
}

}  // namespace rondo::examples
