// HostGroup: a ProcessGroup of host tensors on which a device's group builds (nccl_group.h). It carries the messages
// between the hosts, and both groups fail together. Below the class: functions that all kinds of groups share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/groups/process_group.h"

namespace rondo::dist {

class PeerStatus;

class HostGroup : public ProcessGroup {
 public:
  std::string failure() override = 0;  // must return at once
  // Call when the device's group has failed, and has told the launcher and the other ranks why. From then on no
  // collective can run. Returns at once. Any thread may call it.
  virtual void give_up(const std::string& sentence) = 0;
  // Returns null if this process is the only one.
  virtual PeerStatus* peers() = 0;
  int rank_in_job(int rank) const override = 0;
  // Like ProcessGroup::subgroup().
  virtual std::shared_ptr<HostGroup> host_subgroup(const std::vector<int>& ranks, std::string_view name) = 0;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, std::string_view name) override {
    return host_subgroup(ranks, name);
  }
};

// Makes a group of one process, with no messages and no threads. `rank_in_job`: the rank of this process in its job.
std::shared_ptr<HostGroup> make_solo_group(const GroupOptions& options, int rank_in_job = 0);
// Checks the `ranks` of a new subgroup, and that all ranks of `group` pass the same list. A collective; subgroup()
// calls it.
void agree_on_members(ProcessGroup& group, const std::vector<int>& ranks, std::string_view name);

// The checks that every group makes before it accepts a tensor. They throw Error. `device`: the group's, if it has one.
void check_reducible(const Tensor& tensor, ReduceOp op, std::string_view name, std::optional<Device> device = {},
                     std::string_view collective = "all_reduce");
void check_dense(const Tensor& tensor, std::string_view collective, std::string_view name,
                 std::optional<Device> device = {});
void check_root(int root, int world_size, std::string_view name);
void check_gather(const Tensor& out, const Tensor& in, int world_size, std::string_view name,
                  std::optional<Device> device = {}, int rank = 0);
void check_scatter(const Tensor& out, const Tensor& in, int world_size, ReduceOp op, std::string_view name,
                   std::optional<Device> device = {});

}  // namespace rondo::dist
