#include "rondo/examples/run_control.h"

#include <atomic>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/checkpoint.h"

namespace rondo::examples {
namespace {

std::atomic<optim::Trainer*> running = nullptr;

void cancel_running(int) {
  if (optim::Trainer* trainer = running.load()) trainer->cancel();
}

}  // namespace

CancelOnSignals::CancelOnSignals(optim::Trainer& trainer) {
  running = &trainer;
  struct sigaction action = {};
  action.sa_handler = cancel_running;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

CancelOnSignals::~CancelOnSignals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  running = nullptr;
}

void resume(optim::Trainer& trainer, std::string from, const std::string& output_dir, const Job& job) {
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

}  // namespace rondo::examples
