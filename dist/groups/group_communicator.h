// GroupCommunicator: lets layers sum their statistics over a process group (runtime/op/communicator.h).
//
//   auto statistics = dist::convert_sync_batchnorm(model, group);  // before compile_module(), DistributedDataParallel
//
// Every rank must then make the same calls of `model` in the same order. In training, each normalisation is a
// collective in forward and in backward, also for a rank whose batch is empty. Evaluation sends nothing.
#pragma once

#include <memory>

#include "rondo/dist/groups/process_group.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/op/communicator.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

class GroupCommunicator final : public rondo::Communicator {
 public:
  // Use a subgroup with its own connections, so that these small messages do not wait behind buckets of gradients.
  explicit GroupCommunicator(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Throws Error if the group does not accept the tensor. Also throws the group's errors: Note [Where an error
  // surfaces] in process_group.h.
  void all_reduce_sum(const Tensor& tensor) override;

  // Return how many messages, and how many bytes of each rank's tensors, have been sent so far. Any thread that issues
  // collectives may call these.
  int64_t messages() const { return messages_; }
  int64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  int64_t messages_ = 0, bytes_ = 0;
};

// Makes every BatchNorm1d and BatchNorm2d of `model` normalise over the batches of all ranks (Ioffe and Szegedy's batch
// normalisation). In training, each such layer computes its statistics from 2 C + 1 f64 numbers (C channels) that are
// summed over the ranks: one message in forward and one in backward. Batches may have different sizes, and may be
// empty. The model's names and state do not change. Throws Error if the model has no BatchNorm.
std::shared_ptr<GroupCommunicator> convert_sync_batchnorm(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group);

}  // namespace rondo::dist
#pragma GCC visibility pop
