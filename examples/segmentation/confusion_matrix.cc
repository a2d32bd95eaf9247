#include "rondo/examples/segmentation/confusion_matrix.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {

ConfusionMatrix::ConfusionMatrix(int64_t classes, int64_t ignore_index)
    : classes_(classes), ignore_index_(ignore_index), counts_(static_cast<size_t>(classes * classes)) {}

void ConfusionMatrix::add(const Tensor& predicted, const Tensor& targets) {
  if (!(predicted.sizes() == targets.sizes()))
    throw Error(absl::StrCat("ConfusionMatrix: predictions and targets must have one shape, got ",
                             to_string(predicted.sizes()), " and ", to_string(targets.sizes())));
  const std::vector<int64_t> p = predicted.to(kI64).to_vector<int64_t>(), t = targets.to(kI64).to_vector<int64_t>();
  for (size_t i = 0; i < t.size(); ++i) {
    if (t[i] == ignore_index_) continue;
    for (const int64_t c : {t[i], p[i]})
      if (c < 0 || c >= classes_)
        throw Error(absl::StrCat("ConfusionMatrix: there are ", classes_, " classes, got class ", c));
    ++counts_[static_cast<size_t>(t[i] * classes_ + p[i])];
  }
}

int64_t ConfusionMatrix::count(int64_t target, int64_t predicted) const {
  return counts_[static_cast<size_t>(target * classes_ + predicted)];
}

std::optional<double> ConfusionMatrix::iou(int64_t of_class) const {
  int64_t either = 0;
  for (int64_t c = 0; c < classes_; ++c) either += count(of_class, c) + (c == of_class ? 0 : count(c, of_class));
  if (either == 0) return std::nullopt;
  return static_cast<double>(count(of_class, of_class)) / static_cast<double>(either);
}

double ConfusionMatrix::mean_iou() const {
  double sum = 0;
  int64_t n = 0;
  for (int64_t c = 0; c < classes_; ++c)
    if (const std::optional<double> value = iou(c)) {
      sum += *value;
      ++n;
    }
  return n > 0 ? sum / static_cast<double>(n) : 0;
}

double ConfusionMatrix::accuracy() const {
  int64_t right = 0, all = 0;
  for (int64_t t = 0; t < classes_; ++t)
    for (int64_t p = 0; p < classes_; ++p) {
      all += count(t, p);
      if (t == p) right += count(t, p);
    }
  return all > 0 ? static_cast<double>(right) / static_cast<double>(all) : 0;
}

std::vector<double> ConfusionMatrix::counts() const { return {counts_.begin(), counts_.end()}; }
void ConfusionMatrix::set_counts(const std::vector<double>& counts) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] = std::llround(counts[i]);
}

}  // namespace rondo::examples
