// The cores that this process may use: those of its affinity mask, and no more than its container's quota pays for.
// More threads than the quota pays for are worse than none: the kernel stops all of them for the rest of each period.
//
//   docker run --cpus=1.5 ...    // on a machine of 64 cores: usable_cores() is 2
//
// Nothing is kept: every call asks the system, which takes about 0.1 ms. Thread safe.
#pragma once

#include <optional>
#include <string>

namespace rondo {

// Processor time that a control group may use, in cores.
struct CpuQuota {
  double cores = 0;
  std::string file;  // that says so: "/sys/fs/cgroup/cpu.max"
};

// The smallest quota of this process's control group and of the groups around it, in version 1 (cpu.cfs_quota_us) and 2
// (cpu.max) of control groups. Nothing if there is none, or if the system does not say. `root`, for tests: the folder
// that holds proc/self/cgroup, proc/self/mountinfo and the mounted files.
std::optional<CpuQuota> cpu_quota(const std::string& root = "");

// Cores of the affinity mask; those of the machine if the system has no such mask.
int cores_of_affinity();

// The smaller one of cores_of_affinity() and the quota, rounded up. At least 1. `why`, if not null: one sentence for
// the user if the quota is the smaller one, else empty.
int usable_cores(std::string* why = nullptr, const std::string& root = "");

}  // namespace rondo
