// A group of processes whose host tensors travel over TCP (tcp_transport.h).
#pragma once

#include <memory>

#include "rondo/dist/groups/host_group.h"

namespace rondo::dist {

// REQUIRES: environment.world_size > 1. Throws DistError.
std::shared_ptr<HostGroup> connect_tcp(const Environment& environment, GroupOptions options);

}  // namespace rondo::dist
