// The cores that this process may use: those of its affinity mask, and no more than its container's quota pays for.
// Too many threads use up the quota early, and the kernel then stops all of them for the rest of each period.
//
//   docker run --cpus=1.5 ...    // on a machine of 64 cores: usable_cores() is 2
//
// Nothing is cached: every call asks the system, which takes about 0.1 ms. Thread safe.
#pragma once

#include <optional>
#include <string>

namespace rondo {

// Processor time that a control group may use, in cores.
struct CpuQuota {
  double cores = 0;
  std::string file;  // the file that sets the quota: "/sys/fs/cgroup/cpu.max"
};

// Returns the smallest quota among this process's control group and its parent groups, in version 1 (cpu.cfs_quota_us)
// or 2 (cpu.max) of control groups. nullopt if no group has a quota, or if the files cannot be read. `root` is for
// tests: the folder that holds proc/self/cgroup, proc/self/mountinfo and the mounted files.
std::optional<CpuQuota> cpu_quota(const std::string& root = "");

// Returns the number of cores in the affinity mask, or of the machine if the system has no affinity masks.
int cores_of_affinity();

// Returns the smaller one of cores_of_affinity() and the quota, rounded up; at least 1. If `why` is not null, sets it
// to one sentence for the user if the quota is the smaller one, else to an empty text.
int usable_cores(std::string* why = nullptr, const std::string& root = "");

}  // namespace rondo
