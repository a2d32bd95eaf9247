// A ProcessGroup with Gloo's collectives. Without Gloo, connect_gloo() throws DistError, which says how to get it.
#pragma once

#include <memory>

#include "rondo/dist/host_group.h"

namespace rondo::dist {

// REQUIRES: environment.world_size > 1.
std::shared_ptr<HostGroup> connect_gloo(const Environment& environment, GroupOptions options);

}  // namespace rondo::dist
