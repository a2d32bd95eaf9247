#include "rondo/examples/run_control.h"

#include <atomic>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace rondo::examples {
namespace {

std::atomic<optim::Trainer*> running = nullptr;

void cancel_running(int) {
  if (optim::Trainer* trainer = running.load()) trainer->cancel();
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
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

void resume(optim::Trainer& trainer, const std::string& from, const std::string& output_dir) {
  if (from.ends_with(".safetensors")) {
    trainer.resume_from_file(from);
    return;
  }
  const auto resumed = trainer.resume_from_checkpoint(from == "true" ? output_dir : from);
  if (!resumed) {
    if (from != "true") throw Error(absl::StrCat("--resume_from_checkpoint: there is no checkpoint in ", from));
    return say(absl::StrCat("no checkpoint in ", output_dir, " yet: starting anew"));
  }
  for (const auto& [path, reason] : resumed->skipped) say(absl::StrCat("skipping ", reason));
  say(absl::StrCat("resuming from ", resumed->path));
}

}  // namespace rondo::examples
