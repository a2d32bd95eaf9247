#include "rondo/runtime/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/format.h"

namespace rondo {
namespace {

using Fields = std::vector<std::string>;

// A mounted hierarchy of control groups that can have CPU quotas.
struct Mount {
  std::string point;  // "/sys/fs/cgroup"
  std::string group;  // the group that `point` shows: "/", or a container's own
  bool is_v2;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

bool lists_cpu(const std::string& comma_separated) {
  const Fields names = absl::StrSplit(comma_separated, ',');
  return std::find(names.begin(), names.end(), "cpu") != names.end();
}

// Decodes the octal numbers, such as "\040", with which mountinfo writes spaces, tabs, newlines and backslashes.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return text[i + at] >= '0' && text[i + at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && digit(1) && digit(2) && digit(3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Reads the lines of mountinfo, see proc(5): "36 35 0:31 GROUP POINT rw,relatime shared:9 - cgroup2 cgroup2 rw". The
// number of optional fields before the "-" varies.
std::vector<Mount> mounts(const std::string& root) {
  std::vector<Mount> found;
  for (const std::string& line : lines_of(root + "/proc/self/mountinfo")) {
    const Fields fields = absl::StrSplit(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.end() - dash < 4 || dash - fields.begin() < 6) continue;
    const bool is_v2 = dash[1] == "cgroup2";
    if (is_v2 || (dash[1] == "cgroup" && lists_cpu(dash[3])))
      found.push_back({unescaped(fields[4]), unescaped(fields[3]), is_v2});
  }
  return found;
}

// Returns this process's control group, in the hierarchy of version 1 or 2. The lines are "4:cpu,cpuacct:/GROUP" in
// version 1, "0::/GROUP" in version 2.
std::optional<std::string> own_group(const std::string& root, bool is_v2) {
  for (const std::string& line : lines_of(root + "/proc/self/cgroup")) {
    const Fields fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() == 3 && (is_v2 ? fields[0] == "0" && fields[1].empty() : lists_cpu(fields[1]))) return fields[2];
  }
  return std::nullopt;
}

// Returns the path of `group` relative to `top`: "" for `top` itself, "/a/b" for a group inside of `top`, nullopt for a
// group outside of `top`.
std::optional<std::string> below(const std::string& top, const std::string& group) {
  const std::string prefix = top == "/" ? "" : top;
  const std::string whole = group == "/" ? "" : group;
  if (whole.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  const std::string rest = whole.substr(prefix.size());
  if (!rest.empty() && (rest[0] != '/' || absl::StrContains(rest + "/", "/../"))) return std::nullopt;
  return rest;
}

std::string first_line(const std::string& path) {
  const std::vector<std::string> lines = lines_of(path);
  return lines.empty() ? "" : lines[0];
}

// Returns the quota of one control group, without those of its parent groups. The files give microseconds per period;
// "max" or -1 means no limit.
std::optional<CpuQuota> quota_of(const std::string& root, const std::string& folder, bool is_v2) {
  const std::string file = folder + (is_v2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  Fields numbers = absl::StrSplit(first_line(root + file), ' ', absl::SkipEmpty());
  if (!is_v2) numbers.push_back(first_line(root + folder + "/cpu.cfs_period_us"));
  int64_t quota = 0, period = 0;
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &quota) || !absl::SimpleAtoi(numbers[1], &period) ||
      quota <= 0 || period <= 0)
    return std::nullopt;
  return CpuQuota{static_cast<double>(quota) / static_cast<double>(period), file};
}

}  // namespace

std::optional<CpuQuota> cpu_quota(const std::string& root) {
  std::optional<CpuQuota> smallest;
  for (const Mount& mount : mounts(root)) {
    const std::optional<std::string> group = own_group(root, mount.is_v2);
    if (!group) continue;
    // A container may see the name that its group has on the host, but a mount without a group of this name. The
    // container's own group is then the top of the mount.
    std::string folder = mount.point + below(mount.group, *group).value_or("");
    while (folder.size() >= mount.point.size()) {
      if (std::optional<CpuQuota> quota = quota_of(root, folder, mount.is_v2))
        if (!smallest || quota->cores < smallest->cores) smallest = std::move(quota);
      const size_t slash = folder.rfind('/');
      if (slash == std::string::npos) break;
      folder.resize(slash);
    }
  }
  return smallest;
}

int cores_of_affinity() {
  // sched_getaffinity() fails with EINVAL while the mask is too small for the cores of the machine.
  for (int most = 1024; most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    const int error = known ? 0 : errno;
    const int cores = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(1, cores);
    if (error != EINVAL) break;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int usable_cores(std::string* why, const std::string& root) {
  if (why != nullptr) why->clear();
  const int cores = cores_of_affinity();
  const std::optional<CpuQuota> quota = cpu_quota(root);
  if (!quota || quota->cores > cores - 1) return cores;
  const int allowed = std::max(1, static_cast<int>(std::ceil(quota->cores)));
  if (why != nullptr)
    *why = absl::StrCat("the CPU quota of this container is ", quota->cores, " of ", cores, " cores (", quota->file,
                        "), so Rondo uses ", counted(allowed, "thread"), "; RONDO_NUM_THREADS sets another number");
  return allowed;
}

}  // namespace rondo
