// The ProcessGroup of a device: host tensors go to a group of the hosts, the device's tensors to NCCL.
#pragma once

#include <memory>

#include "rondo/dist/groups/host_group.h"
#include "rondo/dist/groups/nccl_library.h"

namespace rondo::dist {

// REQUIRES: host->world_size() > 1, and every rank has options.device. Throws like ProcessGroup::connect().
std::shared_ptr<ProcessGroup> connect_nccl(std::shared_ptr<HostGroup> host, const GroupOptions& options);

// Like connect_nccl(), but with a given library. A collective of all ranks of `host`. Called by connect_nccl() and by
// tests (also for one process).
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<HostGroup> host, const GroupOptions& options,
                                              const NcclLibrary* library, const std::string& why_no_library,
                                              std::string label = "");

}  // namespace rondo::dist
