// A group for tests of what is above it: collectives on tensors of a device, by way of the host. They are done when
// they return, so this says nothing about streams; NCCL's group and its fake do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/dist/groups/process_group.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::test {

class StagedGroup final : public dist::ProcessGroup {
 public:
  StagedGroup(std::shared_ptr<dist::ProcessGroup> host, Device device) : host_(std::move(host)), device_(device) {}

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  std::optional<Device> device() const override { return device_; }
  dist::Work all_reduce(const Tensor& tensor, dist::ReduceOp op, std::string_view name) override {
    return staged(tensor, name, [&](const Tensor& there) { host_->all_reduce(there, op, name).wait(); });
  }
  dist::Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return staged(tensor, name, [&](const Tensor& there) { host_->broadcast(there, root, name).wait(); });
  }
  dist::Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    if (in.device() == device_)
      return staged(out, name, [&](const Tensor& there) { host_->all_gather(there, to_host(in), name).wait(); });
    exchanges.emplace_back(name);
    return host_->all_gather(out, in, name);
  }
  dist::Work reduce_scatter(const Tensor& out, const Tensor& in, dist::ReduceOp op, std::string_view name) override {
    return staged(out, name, [&](const Tensor& there) { host_->reduce_scatter(there, to_host(in), op, name).wait(); });
  }
  dist::Work barrier(std::string_view name) override { return host_->barrier(name); }
  std::vector<std::string> issued, exchanges;  // names of collectives: on the device, and between the hosts

 private:
  static Tensor to_host(const Tensor& tensor) {
    const NoGrad off;
    return tensor.to(kCPU);
  }
  template <class Run> dist::Work staged(Tensor tensor, std::string_view name, Run run) {
    const NoGrad off;
    const bool on_device = tensor.device() == device_;
    const Tensor there = on_device ? tensor.to(kCPU) : tensor;
    run(there);
    if (on_device) {
      issued.emplace_back(name);
      tensor.copy_(there);
    }
    return {};
  }

  const std::shared_ptr<dist::ProcessGroup> host_;
  const Device device_;
};

}  // namespace rondo::test
