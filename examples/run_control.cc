#include "rondo/examples/run_control.h"

#include <atomic>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/checkpoint/checkpoint.h"

namespace rondo::examples {
namespace {

std::atomic<optim::Trainer*> running = nullptr;

void cancel_running(int) {
  if (optim::Trainer* trainer = running.load()) trainer->cancel();
}

// While this object lives, SIGINT and SIGTERM cancel the trainer.
class CancelOnSignals {
 public:
  explicit CancelOnSignals(optim::Trainer& trainer) {
    running = &trainer;
    struct sigaction action = {};
    action.sa_handler = cancel_running;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  }
  ~CancelOnSignals() {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
    running = nullptr;
  }
  CancelOnSignals(const CancelOnSignals&) = delete;
  CancelOnSignals& operator=(const CancelOnSignals&) = delete;
};

}  // namespace

void add_options(Flags& flags, RunOptions& o, std::string output_dir, std::string seed) {
  flags.add("output_dir", &o.output_dir, std::move(output_dir));
  flags.add("overwrite_output_dir", &o.overwrite_output_dir, "delete the checkpoints of an earlier run in output_dir");
  flags.add("resume_from_checkpoint", &o.resume_from_checkpoint,
            "true: the newest in output_dir, if there is one; else a folder or a file");
  flags.add("gradient_accumulation_steps", &o.gradient_accumulation_steps, "batches of a step, of each process");
  flags.add("max_grad_norm", &o.max_grad_norm, "gradients are clipped to this norm; 0: not clipped");
  flags.add("logging_steps", &o.logging_steps, "steps between two lines");
  flags.add("save_steps", &o.save_steps, "steps between two checkpoints; 0: an epoch");
  flags.add("save_total_limit", &o.save_total_limit, "checkpoints that stay");
  flags.add("seed", &o.seed, std::move(seed));
  flags.add("device", &o.device, "cpu, cuda or cuda:1; under rondorun cuda is each rank's own");
  flags.add("check_ranks", &o.check_ranks, "under rondorun: compare the parameters of all ranks after every step");
  flags.add("pin_threads", &o.pin_threads, "several ranks on GPUs: threads run on the cores near the rank's GPU");
  flags.add("ddp_timeout", &o.ddp_timeout, "under rondorun: seconds that a rank may be late");
}

void check(const RunOptions& o) {
  const auto at_least = [](const char* name, int64_t least, int64_t value) {
    if (value < least) throw Error(absl::StrCat("--", name, " must be at least ", least, ", got ", value));
  };
  at_least("gradient_accumulation_steps", 1, o.gradient_accumulation_steps);
  at_least("logging_steps", 1, o.logging_steps);
  at_least("save_steps", 0, o.save_steps);
  if (o.save_total_limit < 1 || o.save_total_limit > 1'000'000)
    throw Error(absl::StrCat("--save_total_limit must be from 1 to 1000000, got ", o.save_total_limit));
  if (!(o.max_grad_norm >= 0)) throw Error(absl::StrCat("--max_grad_norm must not be negative, got ", o.max_grad_norm));
  if (!(o.ddp_timeout > 0 && o.ddp_timeout <= 1e6))
    throw Error(absl::StrCat("--ddp_timeout must be above 0 and at most 1e6, got ", o.ddp_timeout));
}

JobOptions job_options(const RunOptions& o) { return {o.device, o.pin_threads, o.ddp_timeout}; }

optim::TrainerOptions trainer_options_of(const RunOptions& o) {
  return {.gradient_accumulation_steps = o.gradient_accumulation_steps,
          .max_grad_norm = o.max_grad_norm,
          .logging_steps = o.logging_steps,
          .output_dir = o.output_dir,
          .save_steps = o.save_steps,
          .save_total_limit = static_cast<int>(o.save_total_limit),
          .overwrite_output_dir = o.overwrite_output_dir,
          .seed = static_cast<uint64_t>(o.seed)};
}

void resume(optim::Trainer& trainer, const RunOptions& options, const Job& job) {
  const std::string& output_dir = options.output_dir;
  std::string from = options.resume_from_checkpoint;
  if (job.goes_on(output_dir) && !io::list_checkpoints(output_dir).empty()) from = "true";
  if (from.empty()) return;
  if (from.ends_with(".safetensors")) {
    trainer.resume_from_file(from);
    return;
  }
  const auto resumed = trainer.resume_from_checkpoint(from == "true" ? output_dir : from);
  if (!resumed) {
    if (from != "true") throw Error(absl::StrCat("--resume_from_checkpoint: there is no checkpoint in ", from));
    return job.say(absl::StrCat("no checkpoint in ", output_dir, " yet: starting anew"));
  }
  for (const auto& [path, reason] : resumed->skipped) job.say(absl::StrCat("skipping ", path, ": ", reason));
  job.say(absl::StrCat("resuming from ", resumed->path));
}

std::optional<optim::TrainResult> train(optim::Trainer& trainer, const Job& job) {
  const CancelOnSignals signals(trainer);
  optim::TrainResult result = trainer.train();
  if (result.reason != optim::StopReason::kCancelled) return result;
  job.say(formatted("stopped after step %d; --resume_from_checkpoint=true goes on", result.last.step));
  return std::nullopt;
}

}  // namespace rondo::examples
