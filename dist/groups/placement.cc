#include "rondo/dist/groups/placement.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::dist {
namespace {

// Returns the first line of a system file, or "" if the file cannot be read.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns an id that is equal for all processes of a machine, also in containers, and differs between machines and
// boots.
std::string this_machine() {
  const std::string boot = line_of("/proc/sys/kernel/random/boot_id");
  if (!boot.empty()) return boot;
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Returns the kind of a device: "cuda" for "cuda:1".
std::string_view kind_of(std::string_view device) { return device.substr(0, device.find(':')); }

// Reads a list of cores in the system's format, such as "0-3,8". Returns nullopt if the text is not such a list, or has
// a core too large for a cpu_set_t.
std::optional<cpu_set_t> parse_cores(const std::string& text) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last >= CPU_SETSIZE)
      return std::nullopt;
    for (int core = first; core <= last; ++core) CPU_SET(static_cast<size_t>(core), &cores);
  }
  return cores;
}

std::string to_text(const cpu_set_t& cores) {
  std::vector<std::string> ranges;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(static_cast<size_t>(core), &cores)) continue;
    const int first = core;
    while (core + 1 < CPU_SETSIZE && CPU_ISSET(static_cast<size_t>(core + 1), &cores)) ++core;
    ranges.push_back(first == core ? absl::StrCat(core) : absl::StrCat(first, "-", core));
  }
  return absl::StrJoin(ranges, ",");
}

// Restricts a thread to those of its cores that are in `cores`. If there are none, changes nothing and returns false.
bool narrow_thread(pid_t thread, const cpu_set_t& cores) {
  cpu_set_t allowed, both;
  if (::sched_getaffinity(thread, sizeof allowed, &allowed) != 0) return false;
  CPU_AND(&both, &allowed, &cores);
  return CPU_COUNT(&both) > 0 && ::sched_setaffinity(thread, sizeof both, &both) == 0;
}

// Returns the ids of this process's threads, without the calling thread.
std::vector<pid_t> other_threads() {
  std::vector<pid_t> threads;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/task"), &::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    pid_t thread = 0;
    if (absl::SimpleAtoi(entry->d_name, &thread) && thread != ::gettid()) threads.push_back(thread);
  }
  return threads;
}

}  // namespace

Device device_of_rank(std::string_view text, const Environment& environment) {
  Device device = parse_device(text);
  const bool has_number = text.find(':') != std::string_view::npos;
  if (device == kCPU) return device;
  std::string why_not;
  const int n = device_count(device.backend, &why_not);
  if (n == 0) throw Error(why_not);
  if (has_number || environment.local_world_size == 1) {
    require_device(device);
    return device;
  }
  if (n == 1) return device;
  if (environment.local_rank >= n)
    throw Error(absl::StrCat("rank ", environment.rank, " is process ", environment.local_rank, " of ",
                             environment.local_world_size, " on this machine, and the last of the ", n,
                             " devices that it sees is ", to_string({device.backend, static_cast<int8_t>(n - 1)}),
                             ": start fewer processes, or show them more devices (CUDA_VISIBLE_DEVICES)"));
  device.index = static_cast<int8_t>(environment.local_rank);
  return device;
}

DeviceClaim claim_of(Device device) {
  return {to_string(device), this_machine(), backend_of(device).place(device.index).unit};
}

void check_devices(ProcessGroup& group, Device device) { check_devices(group, claim_of(device)); }

void check_devices(ProcessGroup& group, const DeviceClaim& mine) {
  constexpr int64_t kMostBytes = 1024;
  const std::vector<std::string> all = gather_texts(group, absl::StrJoin({mine.device, mine.machine, mine.unit}, "\n"),
                                                    kMostBytes, "device of each rank");
  std::map<std::pair<std::string, std::string>, size_t> first_users;
  std::string first_device;
  for (size_t r = 0; r < all.size(); ++r) {
    std::vector<std::string> parts = absl::StrSplit(all[r], '\n');
    parts.resize(3);
    const std::string &device = parts[0], &machine = parts[1], &unit = parts[2];
    if (r == 0) first_device = device;
    if (kind_of(device) != kind_of(first_device))
      throw Error(absl::StrCat("rank 0 trains on ", first_device, " and rank ", r, " on ", device,
                               ": all ranks of a job need the same kind of device"));
    if (unit.empty()) continue;
    const auto [user, is_first] = first_users.emplace(std::pair(machine, unit), r);
    if (!is_first)
      throw Error(absl::StrCat("ranks ", user->second, " and ", r, " of one machine both use ", device, " (unit ", unit,
                               "). Each rank needs a device of its own: start as many processes as there are devices, "
                               "and name the device without a number (\"",
                               std::string(kind_of(device)), "\"), so that each takes that of its LOCAL_RANK"));
  }
}

Pinned pin_threads(Device device, const std::string& sysfs) {
  const std::string name = to_string(device);
  const auto nothing = [](auto... why) { return Pinned{0, absl::StrCat("threads are not pinned: ", why...)}; };
  std::string bus;
  try {
    bus = backend_of(device).place(device.index).bus;
  } catch (const std::exception& e) {
    return nothing(e.what());
  }
  if (bus.empty()) return nothing(name, " has no PCI address");
  const std::string path = absl::StrCat(sysfs, "/bus/pci/devices/", absl::AsciiStrToLower(bus), "/local_cpulist");
  const std::string list = line_of(path);
  if (list.empty()) return nothing("the system does not say which cores are near ", name, " (", path, ")");
  const std::optional<cpu_set_t> near = parse_cores(list);
  if (!near) return nothing(path, " is no list of cores: \"", list, "\"");
  if (!narrow_thread(0, *near)) return nothing("this process may use none of the cores ", list, " near ", name);
  // Ignores threads that have ended, and threads already restricted to other cores.
  for (const pid_t thread : other_threads()) narrow_thread(thread, *near);
  cpu_set_t now;
  CPU_ZERO(&now);
  ::sched_getaffinity(0, sizeof now, &now);
  return {CPU_COUNT(&now), absl::StrCat("threads run on cores ", to_text(now), ", near ", name, " (", bus, ")")};
}

}  // namespace rondo::dist
