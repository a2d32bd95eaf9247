#include "rondo/optim/trainer/metrics_file.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/optim/trainer/append_file.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/data/line_reader.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"

namespace rondo::optim {
namespace {

// Returns a number as JSON. JSON has no NaN, so numbers that are not finite become null.
std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

}  // namespace

std::string to_json(const MetricsRecord& r) {
  std::string json = absl::StrCat("{\"step\":", r.step, ",\"loss\":", json_number(r.loss));
  if (r.eval_loss) absl::StrAppend(&json, ",\"eval_loss\":", json_number(*r.eval_loss));
  absl::StrAppend(&json, ",\"lr\":", json_number(r.lr));
  if (r.grad_norm) absl::StrAppend(&json, ",\"grad_norm\":", json_number(*r.grad_norm));
  append_formatted(&json, ",\"targets_per_s\":%.0f,\"step_ms\":%.3f", r.targets_per_s, r.step_ms);
  if (r.peak_rss_mib) append_formatted(&json, ",\"peak_rss_mib\":%.1f", *r.peak_rss_mib);
  return json + "}";
}

MetricsRecord metrics_from_json(const std::string& json, const std::string& path) {
  MetricsRecord r;
  io::JsonReader reader(path, json);
  reader.object([&](std::string& key) {
    if (key == "step") {
      r.step = static_cast<int64_t>(reader.unsigned_integer());
      return;
    }
    double value = NAN;
    if (reader.peek() != '-' && !(reader.peek() >= '0' && reader.peek() <= '9')) reader.skip();  // null, or no number
    else if (!absl::SimpleAtod(std::string(reader.number()), &value)) reader.fail("not a number");
    if (key == "loss") r.loss = value;
    else if (key == "eval_loss") r.eval_loss = value;
    else if (key == "lr") r.lr = value;
    else if (key == "grad_norm") r.grad_norm = value;
    else if (key == "targets_per_s") r.targets_per_s = value;
    else if (key == "step_ms") r.step_ms = value;
    else if (key == "peak_rss_mib") r.peak_rss_mib = value;
  });
  reader.finish();
  return r;
}

namespace {

// Reads the record of a line. Throws DataError, which names the line.
MetricsRecord record_of(std::string_view line, const std::string& path, int64_t number) {
  const std::string label = "JSON";
  try {
    return metrics_from_json(std::string(line), label);
  } catch (const FileError& error) {
    throw data::DataError(
        path, number,
        absl::StrCat(error.what() + label.size() + 2, "; remove the file, or the damaged line and those below it"));
  }
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, int64_t first_step) {
  if (const std::string folder = std::filesystem::path(path).parent_path().string(); !folder.empty())
    io::make_folders(folder);
  std::string kept;
  std::error_code none;
  if (first_step > 0 && std::filesystem::exists(path, none)) {
    data::LineReader lines(path);
    // Reads up to the first line that is not whole, because a kill cut it short. It was written after the newest
    // checkpoint.
    for (std::string_view line; lines.next(line) && lines.ended();) {
      const MetricsRecord record = record_of(line, path, lines.number());
      if (record.step > first_step) break;
      records_.push_back(record);
      absl::StrAppend(&kept, std::string(line), "\n");
    }
  }
  io::write_file_atomic(path, kept);
  file_ = std::make_unique<AppendFile>(path, AppendFile::kContinue);
}

MetricsFile::~MetricsFile() = default;

void MetricsFile::write(const MetricsRecord& record) {
  // Writes the line with one call, so that after a kill only the last line may be incomplete.
  file_->append(to_json(record) + "\n");
  records_.push_back(record);
}

void MetricsFile::sync() { file_->sync(); }

namespace {

void write_line(MetricsFile& file, const Progress& now, bool evaluated) {
  // A resumed run may repeat an evaluation whose line is in the file already. The result is the same.
  if (!file.records().empty()) {
    const MetricsRecord& last = file.records().back();
    if (last.step == now.step && last.eval_loss.has_value() == evaluated) return;
  }
  MetricsRecord record{.step = now.step, .loss = now.loss, .lr = now.lr};
  if (evaluated) record.eval_loss = now.eval_loss;
  if (!std::isnan(now.grad_norm)) record.grad_norm = now.grad_norm;
  record.targets_per_s = std::isnan(now.targets_per_second) ? 0 : now.targets_per_second;
  record.step_ms = std::isnan(now.step_ms) ? 0 : now.step_ms;
  file.write(record);
}

}  // namespace

void MetricsLog::on_begin(const Progress& now) { file_.emplace(path_, now.step); }
void MetricsLog::on_log(const Progress& now) { write_line(*file_, now, false); }
void MetricsLog::on_evaluate(const Progress& now) { write_line(*file_, now, true); }

}  // namespace rondo::optim
