#include "rondo/examples/segmentation/evaluation_log.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/image/image.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::examples {
namespace {

constexpr uint64_t kMostBytes = 1 << 28;

int64_t step_of(const std::string& path, const std::string& line) {
  int64_t step = -1;
  io::JsonReader json(path, line);
  json.object([&](std::string& key) {
    if (key == "step") step = static_cast<int64_t>(json.unsigned_integer());
    else json.skip();
  });
  return step;
}

}  // namespace

void EvaluationLog::begin(int64_t step) {
  const std::string path = folder_ + "/miou.jsonl";
  io::make_folders(folder_ + "/pictures");
  lines_.clear();
  if (step > 0 && std::filesystem::exists(path))
    for (const absl::string_view line : absl::StrSplit(io::read_text(path, kMostBytes), '\n', absl::SkipEmpty())) {
      std::string text(line);
      if (step_of(path, text) <= step) lines_.push_back(std::move(text));
    }
  events_.emplace(folder_ + "/tensorboard/evaluation", step);
}

void EvaluationLog::write(int64_t step, double miou, double accuracy) {
  lines_.push_back(formatted(R"({"step": %d, "miou": %.17g, "accuracy": %.17g})", step, miou, accuracy));
  io::write_file_atomic(folder_ + "/miou.jsonl", absl::StrJoin(lines_, "\n") + "\n");
  events_->write(step, {{"eval/miou", miou}, {"eval/accuracy", accuracy}});
}

void EvaluationLog::show(int64_t step, const Tensor& picture) {
  const std::string png = io::encode_image(picture, io::ImageFormat::kPng);
  io::write_file_atomic(formatted("%s/pictures/step-%06d.png", folder_, step), png);
  events_->write_image(
      step, {.tag = "eval/pictures", .png = png, .height = picture.size(1), .width = picture.size(2), .channels = 3});
}

}  // namespace rondo::examples
