#include "rondo/dist/groups/group_communicator.h"

#include "rondo/modules/layers/channel_norm.h"

namespace rondo::dist {

void GroupCommunicator::all_reduce_sum(const Tensor& tensor) {
  group_->all_reduce(tensor, ReduceOp::kSum, "all_reduce_sum of a layer").wait();
  ++messages_;
  bytes_ += tensor.nbytes();
}

std::shared_ptr<GroupCommunicator> convert_sync_batchnorm(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) throw Error("convert_sync_batchnorm: needs a process group");
  auto communicator = std::make_shared<GroupCommunicator>(std::move(group));
  int layers = 0;
  model.apply([&](nn::ModuleBase& module) {
    if (auto* const of_rows = dynamic_cast<nn::BatchNorm1d*>(&module)) of_rows->synchronise(communicator), ++layers;
    if (auto* const of_images = dynamic_cast<nn::BatchNorm2d*>(&module)) of_images->synchronise(communicator), ++layers;
  });
  if (layers == 0) throw Error("convert_sync_batchnorm: the model has no BatchNorm1d or BatchNorm2d");
  return communicator;
}

}  // namespace rondo::dist
