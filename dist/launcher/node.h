// Counts the GPUs of this machine, for --nproc-per-node.
#pragma once

#include <string>

namespace rondo::dist {

// Returns the number of CUDA devices that programs started from here would see (CUDA_VISIBLE_DEVICES). A child process
// asks the driver, so this process does not load the driver. `why_not`, if not null, receives why there are none.
// REQUIRES: this process has one thread.
int count_gpus(std::string* why_not);

}  // namespace rondo::dist
