// StepState: data that the parts of DistributedDataParallel share. It holds the gradients, how far each has come in
// this step, and what is wrong with the step.
//
// A gradient has arrived when backward has made it final. It is sent when its first piece leaves, and delivered when
// its parameter has the average. A gradient that travels in two parts (Note [Two parts] in row_gather.h) arrives with
// the first part and is complete with the second.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/row_gather.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/accumulate_node.h"

namespace rondo::dist {

inline constexpr const char* kDdp = "DistributedDataParallel";  // the name of the class, for messages
inline constexpr int64_t kMaxErrorBytes = 512;                  // the longest error message that a rank sends

struct StepGradient {
  void start_over();

  // Kept from step to step
  std::string name;  // the parameter's name
  Tensor parameter;
  std::string block;                // the path of the parameter's block, "" outside the blocks
  std::unique_ptr<RowGather> rows;  // once the order is learned: null if the gradient travels in one part
  std::unique_ptr<autograd::GradientHome> home;
  int64_t hook = 0;
  bool claimed = false;
  // Reset in each step
  bool arrived = false, complete = false, sent = false, delivered = false;
  bool only_holder = false;  // no other handle shares the memory of the gradient that is sent
  Tensor held;               // the gradient, taken out of .grad, until its last piece is in a bucket
  Tensor assembled;          // the average of the pieces so far, or of the first part
};

struct StepState final : BackwardProgress {
  // `gradients` has one entry for each parameter of the model that requires grad.
  StepState(const nn::ModuleBase& model, ProcessGroup& group, const BucketOptions& options);

  void start_over();
  // Keeps what is wrong on this rank; finish() tells the other ranks. Only the first trouble of a step is kept.
  void note(std::string trouble);
  size_t position_of(const Tensor& parameter) const { return positions.at(parameter.impl()); }
  // Returns the tag of parameter `i`'s rows. It is different for each parameter and each step.
  int64_t tag_of_rows(size_t i) const {
    return number * static_cast<int64_t>(gradients.size()) + static_cast<int64_t>(i);
  }

  // Kept from step to step
  ProcessGroup& group;
  const BucketOptions options;
  const Device device;      // the device of the parameters
  const bool async_device;  // the device runs asynchronously: the host reads none of its memory, and finish() delivers
  std::vector<StepGradient> gradients;
  std::unordered_map<const TensorImpl*, size_t> positions;  // the index of each parameter in `gradients`
  std::vector<size_t> in_two_parts;                         // indices into `gradients`, once the order is learned

  // Reset in each step, but `number` counts up
  int64_t number = 1;
  std::string trouble;
  std::vector<std::string> unused;  // with allow_unused: parameters without a gradient
};

}  // namespace rondo::dist
