#include "rondo/examples/training_log.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/examples/loss_curve.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"

namespace rondo::examples {
namespace {

// JSON has no NaN.
template <class T> std::string json_number(T value) {
  if (!std::isfinite(value)) return "null";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

double peak_rss_mib() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 3600) return absl::StrFormat("%d:%02d", s / 60, s % 60);
  return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
}

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

std::string to_json(const Record& r) {
  std::string json = absl::StrCat("{\"step\":", r.step, ",\"loss\":", json_number(r.loss));
  if (r.val_loss) absl::StrAppend(&json, ",\"val_loss\":", json_number(*r.val_loss));
  absl::StrAppend(&json, ",\"lr\":", json_number(r.lr));
  absl::StrAppendFormat(&json, ",\"tokens_per_s\":%.0f,\"step_ms\":%.3f", r.tokens_per_s, r.step_ms);
  if (r.peak_rss_mib) absl::StrAppendFormat(&json, ",\"peak_rss_mib\":%.1f", *r.peak_rss_mib);
  return json + "}";
}

Record record_from_json(const std::string& json, const std::string& path) {
  Record r;
  io::JsonReader reader(path, json);
  reader.object([&](std::string& key) {
    if (key == "step") {
      r.step = static_cast<int64_t>(reader.unsigned_integer());
      return;
    }
    double value = NAN;
    if (reader.peek() == 'n') reader.skip();
    else if (!absl::SimpleAtod(std::string(reader.number()), &value)) reader.fail("not a number");
    if (key == "loss") r.loss = static_cast<float>(value);
    else if (key == "val_loss") r.val_loss = value;
    else if (key == "lr") r.lr = value;
    else if (key == "tokens_per_s") r.tokens_per_s = value;
    else if (key == "step_ms") r.step_ms = value;
    else if (key == "peak_rss_mib") r.peak_rss_mib = value;
  });
  reader.finish();
  return r;
}

TrainingLog::TrainingLog(const std::string& folder, int64_t first_step, int64_t max_steps, int64_t tokens_per_step)
    : folder_(folder),
      first_step_(first_step),
      max_steps_(max_steps),
      tokens_per_step_(tokens_per_step),
      events_(folder + "/tensorboard", first_step),
      done_(first_step),
      terminal_(isatty(STDOUT_FILENO) == 1) {
  load(first_step);
  const std::string path = folder_ + "/metrics.jsonl";
  metrics_ = std::fopen(path.c_str(), "ab");
  if (metrics_ == nullptr) throw FileError(path, std::strerror(errno));
}

TrainingLog::~TrainingLog() {
  clear_bar();
  std::fclose(metrics_);
}

// Keeps the lines up to `first_step`. A line that a kill cut short is later than any checkpoint.
void TrainingLog::load(int64_t first_step) {
  const std::string path = folder_ + "/metrics.jsonl";
  std::string kept, line;
  std::ifstream file(path);
  while (first_step > 0 && std::getline(file, line) && !file.eof()) {
    const Record record = record_from_json(line, path);
    if (record.step > first_step) break;
    records_.push_back(record);
    if (record.val_loss) val_loss_ = record.val_loss;
    absl::StrAppend(&kept, line, "\n");
  }
  io::write_file_atomic(path, kept);
}

void TrainingLog::begin_step() { step_began_ = Clock::now(); }

void TrainingLog::end_step(float loss) {
  const auto now = Clock::now();
  timed_ms_ += 1e3 * seconds_between(step_began_, now);
  ++timed_steps_;
  ++done_;
  loss_ = loss;
  if (terminal_ && seconds_between(bar_drawn_, now) > 0.1) draw_bar();
}

void TrainingLog::write(Record record) {
  if (timed_steps_ > 0) {
    record.step_ms = timed_ms_ / static_cast<double>(timed_steps_);
    record.tokens_per_s = static_cast<double>(tokens_per_step_) / record.step_ms * 1e3;
  }
  timed_ms_ = 0;
  timed_steps_ = 0;
  const bool last = record.step == max_steps_;
  if (last) record.peak_rss_mib = peak_rss_mib();
  records_.push_back(record);
  const std::string line = to_json(record) + "\n";
  // One write each, so that a kill leaves whole lines but for the last.
  if (std::fwrite(line.data(), 1, line.size(), metrics_) != line.size() || std::fflush(metrics_) != 0)
    throw FileError(folder_ + "/metrics.jsonl", std::strerror(errno));

  std::vector<EventWriter::Scalar> scalars = {
      {"loss/train", record.loss}, {"lr", record.lr}, {"tokens_per_s", record.tokens_per_s}};
  if (record.val_loss) scalars.push_back({"loss/val", *record.val_loss});
  events_.write(record.step, scalars);
  if (record.val_loss) {
    val_loss_ = record.val_loss;
    io::write_file_atomic(folder_ + "/loss.svg", loss_curve_svg(records_));
  }
  // Where nobody watches a bar: about 20 lines a run, and every evaluation.
  const int64_t every = std::max<int64_t>(1, max_steps_ / 20);
  const bool plain = !terminal_ && (record.step == 1 || record.step % every == 0);
  if (!record.val_loss && !plain) return;
  std::string text = absl::StrFormat("step %5d/%d  loss %.4f", record.step, max_steps_, record.loss);
  text += record.val_loss ? absl::StrFormat("  val %.4f", *record.val_loss) : "            ";
  absl::StrAppendFormat(&text, "  lr %.2e  %6.0f tokens/s", record.lr, record.tokens_per_s);
  say(text + (last ? "  in " + clock_text(seconds_between(started_, Clock::now())) : eta()));
}

void TrainingLog::sync() {
  if (fdatasync(fileno(metrics_)) != 0) throw FileError(folder_ + "/metrics.jsonl", std::strerror(errno));
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
  std::string text = absl::StrFormat("\r\033[K[%s] %3.0f%%  step %d/%d  loss %.3f", bar, 100 * share, done_, max_steps_,
                                     loss_);
  if (val_loss_) absl::StrAppendFormat(&text, "  val %.3f", *val_loss_);
  std::printf("%s%s", text.c_str(), eta().c_str());
  std::fflush(stdout);
  bar_visible_ = true;
}

void TrainingLog::clear_bar() {
  if (bar_visible_) std::printf("\r\033[K");
  bar_visible_ = false;
}

}  // namespace rondo::examples
