// CPU quotas, in made-up trees of a system's files.
#include "rondo/runtime/base/usable_cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "rondo/runtime/base/parallel.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo {
namespace {

// The files of a system, by their path.
using Files = std::map<std::string, std::string>;

constexpr const char* kV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kV1 =
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

class System {
 public:
  System(std::string mounts, std::string groups, const Files& files = {}) {
    add("/proc/self/mountinfo", mounts);
    add("/proc/self/cgroup", groups);
    for (const auto& [path, text] : files) add(path, text + "\n");
  }
  double quota() const {
    const auto found = cpu_quota(folder_.path());
    return found ? found->cores : 0;
  }
  std::string file() const {
    const auto found = cpu_quota(folder_.path());
    return found ? found->file : "";
  }
  const std::string& root() const { return folder_.path(); }

 private:
  void add(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_.path() + path).parent_path());
    write_bytes(folder_.path() + path, text);
  }
  TempFolder folder_;
};

Files v1(const std::string& group, const std::string& quota, const std::string& period) {
  const std::string folder = "/sys/fs/cgroup/cpu,cpuacct" + group;
  return {{folder + "/cpu.cfs_quota_us", quota}, {folder + "/cpu.cfs_period_us", period}};
}

TEST(CpuQuota, Version2) {
  const System container(kV2, "0::/\n", {{"/sys/fs/cgroup/cpu.max", "150000 100000"}});
  EXPECT_EQ(container.quota(), 1.5);
  EXPECT_EQ(container.file(), "/sys/fs/cgroup/cpu.max");
}

TEST(CpuQuota, TheSmallestOfTheOwnGroupAndThoseAroundIt) {
  const auto quota = [](const std::string& outer, const std::string& inner) {
    return System(kV2, "0::/pods.slice/pod1/c:1\n",
                  {{"/sys/fs/cgroup/pods.slice/cpu.max", outer},
                   {"/sys/fs/cgroup/pods.slice/pod1/c:1/cpu.max", inner},  // none in between
                   {"/sys/fs/cgroup/other/cpu.max", "1000 100000"}})
        .quota();
  };
  EXPECT_EQ(quota("200000 100000", "max 100000"), 2);
  EXPECT_EQ(quota("200000 100000", "400000 100000"), 2);
  EXPECT_EQ(quota("200000 100000", "12500 50000"), 0.25);
  EXPECT_EQ(quota("max 100000", "max 100000"), 0);
}

TEST(CpuQuota, Version1) {
  EXPECT_EQ(System(kV1, "4:memory:/\n2:cpu,cpuacct:/\n", v1("", "50000", "20000")).quota(), 2.5);
  EXPECT_EQ(System(kV1, "2:cpu,cpuacct:/\n", v1("", "-1", "100000")).quota(), 0);
  // The container sees the host's name of its group, and that group as the top of the mount.
  const std::string mounts = "5 4 0:9 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpuacct,cpu\n";
  EXPECT_EQ(System(mounts, "2:cpuacct,cpu:/docker/ab\n", v1("", "300000", "100000")).quota(), 3);
  EXPECT_EQ(System(mounts, "2:cpuacct,cpu:/docker/ab/in\n", v1("/in", "300000", "100000")).quota(), 3);
  // Or one that has nothing to do with the mount: what is mounted is its own group.
  EXPECT_EQ(System(mounts, "2:cpuacct,cpu:/docker/abc\n", v1("", "300000", "100000")).quota(), 3);
  EXPECT_EQ(System(mounts, "2:cpuacct,cpu:/../x\n", v1("", "300000", "100000")).quota(), 3);
}

TEST(CpuQuota, BothVersions) {
  const std::string mounts = std::string(kV1) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  const std::string groups = "2:cpu,cpuacct:/a\n0::/a\n";
  Files files = v1("/a", "600000", "100000");
  EXPECT_EQ(System(mounts, groups, files).quota(), 6);
  files["/sys/fs/cgroup/unified/a/cpu.max"] = "500000 100000";
  EXPECT_EQ(System(mounts, groups, files).quota(), 5);
}

TEST(CpuQuota, ASpaceInTheMountsName) {
  EXPECT_EQ(System("1 2 0:3 / /my\\040groups rw - cgroup2 none rw\n", "0::/\n", {{"/my groups/cpu.max", "1000 1000"}})
                .quota(),
            1);
}

TEST(CpuQuota, WhatMakesNoSenseIsNoQuota) {
  for (const char* text : {"", "max", "100000", "x y", "0 100000", "-5 100000", "100000 0", "100000 -1", "1 2 3",
                           "1e5 100000", "99999999999999999999 100000", "\x01\xff"})
    EXPECT_EQ(System(kV2, "0::/\n", {{"/sys/fs/cgroup/cpu.max", text}}).quota(), 0) << text;
  EXPECT_EQ(System(kV1, "2:cpu,cpuacct:/\n", {{"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000"}}).quota(), 0);
  const Files max = {{"/sys/fs/cgroup/cpu.max", "100000 100000"}};
  for (const char* mounts : {"", "\n\n", "-", "- cgroup2", "1 2 3 4 5 6 -", "1 2 3 / /sys/fs/cgroup rw cgroup2 x rw",
                             "1 2 3 - cgroup2 / /sys/fs/cgroup"})
    EXPECT_EQ(System(mounts, "0::/\n", max).quota(), 0) << mounts;
  for (const char* groups : {"", "\n", "0", "0:", "0::", ":::", "1::/", "garbage"})
    EXPECT_EQ(System(kV2, groups, max).quota(), groups == std::string("0::") ? 1 : 0) << groups;
  EXPECT_FALSE(cpu_quota("/nowhere"));
}

TEST(UsableCores, FollowsAffinityAndQuota) {
  const auto usable = [](const std::string& max, std::string* why = nullptr) {
    return usable_cores(why, System(kV2, "0::/\n", {{"/sys/fs/cgroup/cpu.max", max}}).root());
  };
  const int cores = cores_of_affinity();
  std::string why = "?";
  EXPECT_EQ(usable("max 100000", &why), cores);
  EXPECT_EQ(why, "");
  EXPECT_EQ(usable("9000000000000000000 1"), cores);
  EXPECT_EQ(usable(std::to_string(cores) + "00 100", &why), cores);
  EXPECT_EQ(why, "");
  EXPECT_EQ(usable("1 100000"), 1);
  if (cores < 2) GTEST_SKIP() << "one core";
  EXPECT_EQ(usable(std::to_string(cores - 1) + "01 100"), cores) << "rounded up";
  EXPECT_EQ(usable("50000 100000", &why), 1);
  EXPECT_EQ(why, "the CPU quota of this container is 0.5 of " + std::to_string(cores) +
                     " cores (/sys/fs/cgroup/cpu.max), so Rondo uses 1 thread; RONDO_NUM_THREADS sets another number");
}

}  // namespace
}  // namespace rondo
