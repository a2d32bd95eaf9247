// EvaluationLog: writes the results of a run's evaluations to files, also for TensorBoard.
//
//   <folder>/miou.jsonl              a line for each evaluation: step, miou, accuracy
//   <folder>/pictures/step-N.png     held-out pictures
//   <folder>/tensorboard/evaluation  miou, accuracy and pictures
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/optim/trainer/event_writer.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::examples {

class EvaluationLog {
 public:
  explicit EvaluationLog(std::string folder) : folder_(std::move(folder)) {}
  // Continues the files of a run that has made `step` steps: removes the results of later steps. Throws FileError.
  void begin(int64_t step);
  void write(int64_t step, double miou, double accuracy);
  void show(int64_t step, const Tensor& picture);  // (3, H, W) u8

 private:
  const std::string folder_;
  std::vector<std::string> lines_;
  std::optional<optim::EventWriter> events_;
};

}  // namespace rondo::examples
