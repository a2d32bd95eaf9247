// What this machine offers to a launcher.
#pragma once

#include <string>

namespace rondo::dist {

// CUDA devices that programs started from here would see (CUDA_VISIBLE_DEVICES). A child process asks the driver, so
// nothing of it stays in this one. `why_not`, if not null: why there are none. REQUIRES: this process has one thread.
int count_gpus(std::string* why_not);

}  // namespace rondo::dist
