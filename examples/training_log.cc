#include "rondo/examples/training_log.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "rondo/examples/loss_curve.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::examples {
namespace {

double peak_rss_mib() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 3600) return formatted("%d:%02d", s / 60, s % 60);
  return formatted("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
}

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

TrainingLog::TrainingLog(const std::string& folder, int64_t first_step, int64_t max_steps, int64_t tokens_per_step)
    : folder_(folder),
      first_step_(first_step),
      max_steps_(max_steps),
      tokens_per_step_(tokens_per_step),
      metrics_(folder + "/metrics.jsonl", first_step),
      events_(folder + "/tensorboard", first_step),
      done_(first_step),
      terminal_(isatty(STDOUT_FILENO) == 1) {
  for (const optim::MetricsRecord& record : metrics_.records())
    if (record.eval_loss) eval_loss_ = record.eval_loss;
}

TrainingLog::~TrainingLog() { clear_bar(); }

void TrainingLog::begin_step() { step_began_ = Clock::now(); }

void TrainingLog::end_step(float loss) {
  const auto now = Clock::now();
  timed_ms_ += 1e3 * seconds_between(step_began_, now);
  ++timed_steps_;
  ++done_;
  loss_ = loss;
  if (terminal_ && seconds_between(bar_drawn_, now) > 0.1) draw_bar();
}

void TrainingLog::write(optim::MetricsRecord record) {
  if (timed_steps_ > 0) {
    record.step_ms = timed_ms_ / static_cast<double>(timed_steps_);
    record.targets_per_s = static_cast<double>(tokens_per_step_) / record.step_ms * 1e3;
  }
  timed_ms_ = 0;
  timed_steps_ = 0;
  const bool last = record.step == max_steps_;
  if (last) record.peak_rss_mib = peak_rss_mib();
  metrics_.write(record);

  std::vector<optim::EventWriter::Scalar> scalars = {
      {"loss/train", record.loss}, {"lr", record.lr}, {"tokens_per_s", record.targets_per_s}};
  if (record.eval_loss) scalars.push_back({"loss/val", *record.eval_loss});
  events_.write(record.step, scalars);
  if (record.eval_loss) {
    eval_loss_ = record.eval_loss;
    io::write_file_atomic(folder_ + "/loss.svg", loss_curve_svg(metrics_.records()));
  }
  // Without a terminal, prints about 20 lines a run in place of the bar. Each evaluation also prints a line.
  const int64_t every = std::max<int64_t>(1, max_steps_ / 20);
  const bool plain = !terminal_ && (record.step == 1 || record.step % every == 0);
  if (!record.eval_loss && !plain) return;
  std::string text = formatted("step %5d/%d  loss %.4f", record.step, max_steps_, record.loss);
  text += record.eval_loss ? formatted("  val %.4f", *record.eval_loss) : "            ";
  append_formatted(&text, "  lr %.2e  %6.0f tokens/s", record.lr, record.targets_per_s);
  say(text + (last ? "  in " + clock_text(seconds_between(started_, Clock::now())) : eta()));
}

void TrainingLog::say(const std::string& text) {
  clear_bar();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

std::string TrainingLog::eta() const {
  if (done_ == first_step_) return "";
  const double per_step = seconds_between(started_, Clock::now()) / static_cast<double>(done_ - first_step_);
  return "  ETA " + clock_text(per_step * static_cast<double>(max_steps_ - done_));
}

void TrainingLog::draw_bar() {
  bar_drawn_ = Clock::now();
  const double share = static_cast<double>(done_) / static_cast<double>(max_steps_);
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(share * kWidth);
  std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::string text = formatted("\r\033[K[%s] %3.0f%%  step %d/%d  loss %.3f", bar, 100 * share, done_, max_steps_,
                               loss_);
  if (eval_loss_) append_formatted(&text, "  val %.3f", *eval_loss_);
  std::printf("%s%s", text.c_str(), eta().c_str());
  std::fflush(stdout);
  bar_visible_ = true;
}

void TrainingLog::clear_bar() {
  if (bar_visible_) std::printf("\r\033[K");
  bar_visible_ = false;
}

}  // namespace rondo::examples
