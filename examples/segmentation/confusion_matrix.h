// ConfusionMatrix: counts how often pixels of each class were predicted as each class. Computes the mean intersection
// over union from the counts.
//
//   ConfusionMatrix matrix(19);
//   matrix.add(ops::argmax(logits, 1), masks);
//   matrix.mean_iou();
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rondo/modules/layers/segmentation_loss.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::examples {

class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(int64_t classes, int64_t ignore_index = nn::kIgnoredClass);
  // Adds the pixels of two tensors of integers, of one shape. Pixels whose target is the ignored class do not count.
  // Throws Error for any other class outside of [0, classes).
  void add(const Tensor& predicted, const Tensor& targets);
  int64_t count(int64_t target, int64_t predicted) const;
  // Returns the intersection over union of one class; nullopt if it neither occurs nor was predicted.
  std::optional<double> iou(int64_t of_class) const;
  // Returns the mean of iou() over the classes that occur or were predicted; 0 if there is none.
  double mean_iou() const;
  // Returns the share of pixels whose class was predicted correctly; 0 if there are no pixels.
  double accuracy() const;

  // Get and set the counts, row by row: for sums over processes.
  std::vector<double> counts() const;
  void set_counts(const std::vector<double>& counts);

 private:
  const int64_t classes_, ignore_index_;
  std::vector<int64_t> counts_;  // [target][predicted]
};

}  // namespace rondo::examples
