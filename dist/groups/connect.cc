// ProcessGroup::connect() is in a file of its own because it includes all kinds of groups.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/groups/host_group.h"
#include "rondo/dist/groups/nccl_group.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/dist/groups/tcp_group.h"
#include "rondo/dist/transport/socket.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::dist {
namespace {

std::string kind_of(Device device) {
  std::string name = to_string(device);
  name.resize(std::min(name.find(':'), name.size()));  // drops the device's number
  return name;
}

// A collective of one message. Throws MismatchError if the ranks have different options: with different options, one
// rank could wait for the others forever.
void agree_on_options(ProcessGroup& host, const GroupOptions& options) {
  constexpr int64_t kNone = -1;
  const Tensor mine = Tensor::from<int64_t>(
      {options.timeout.count(), options.device ? static_cast<int64_t>(options.device->backend) : kNone,
       options.compare_each ? 1 : 0},
      {3}, kCPU);
  const auto text_of = [](size_t option, int64_t value) -> std::string {
    if (option == 0) return absl::StrCat("timeout = ", value, " ms");
    if (option == 1) return "device = " + (value == kNone ? "none" : kind_of({static_cast<Backend>(value)}));
    return absl::StrCat("compare_each = ", value != 0 ? "true" : "false");
  };
  Tensor all = Tensor::zeros({host.world_size(), 3}, {kI64, kCPU});
  host.all_gather(all, mine, "options of the group").wait();
  const std::vector<int64_t> values = all.to_vector<int64_t>();
  std::string differences;
  for (size_t option = 0; option < 3; ++option) {
    std::map<int64_t, std::vector<size_t>> ranks;  // the ranks that have this value
    for (size_t r = 0; 3 * r < values.size(); ++r) ranks[values[3 * r + option]].push_back(r);
    for (const auto& [value, those] : ranks)
      if (ranks.size() > 1)
        absl::StrAppend(&differences, "; ", text_of(option, value), those.size() > 1 ? " on ranks " : " on rank ",
                        absl::StrJoin(those, ", "));
  }
  if (!differences.empty()) throw MismatchError("the ranks connect with different GroupOptions" + differences);
}

// Longer timeouts are shortened to this one: deadlines have 64 bits of nanoseconds, which end after 300 years.
constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::connect(const Environment& environment, GroupOptions options) {
  options.timeout = std::min(options.timeout, kLongestTimeout);
  if (options.device && has_host_memory(*options.device)) options.device.reset();
  if (options.device) require_device(*options.device);
  if (environment.world_size == 1) return make_solo_group(options);
  std::shared_ptr<HostGroup> host = connect_tcp(environment, {.timeout = options.timeout});
  agree_on_options(*host, options);
  if (options.device) return connect_nccl(std::move(host), options);
  return host;
}

}  // namespace rondo::dist
