// The fastest of several ways to run one launch, measured once per machine (Mode::kMaxAutotune).
#pragma once

#include <functional>
#include <span>
#include <string>

namespace rondo::compile {

// The position of the fastest candidate: as measured before, in this process or (disk_cache.h) another one on such a machine,
// else measured now. `what` says all that the times depend on. The first candidate wins unless another is clearly faster.
// Thread safe; measuring is done by one thread at a time.
int fastest(const std::string& what, std::span<const std::function<void()>> candidates);

// Times that this process measured, for tests and reports.
int64_t tunings_measured();
// Forgets what this process knows; the disk keeps its own.
void forget_tunings();

}  // namespace rondo::compile
