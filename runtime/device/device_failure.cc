#include "rondo/runtime/device/device_failure.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace rondo {
namespace {

struct Failed {
  Device device;
  std::exception_ptr error;
  int holders = 0;  // number of DeviceFailure objects alive
};

std::mutex mutex;                         // guards `failed`
auto& failed = *new std::vector<Failed>;  // one entry for each failed device
std::atomic<size_t> n_failed{0};

auto find(Device device) {
  return std::find_if(failed.begin(), failed.end(), [&](const Failed& f) { return f.device == device; });
}

}  // namespace

DeviceFailure::DeviceFailure(Device device, std::exception_ptr error) : device_(device) {
  const std::lock_guard lock(mutex);
  auto found = find(device);
  if (found == failed.end()) found = failed.insert(failed.end(), {device, std::move(error)});
  ++found->holders;
  n_failed.store(failed.size());
}

DeviceFailure::~DeviceFailure() {
  const std::lock_guard lock(mutex);
  --find(device_)->holders;
}

void detail::throw_if_failed(Device device) {
  if (n_failed.load() == 0) [[likely]]
    return;
  const std::lock_guard lock(mutex);
  if (const auto found = find(device); found != failed.end()) std::rethrow_exception(found->error);
}

void detail::throw_and_end_failure(Device device) {
  if (n_failed.load() == 0) [[likely]]
    return;
  const std::lock_guard lock(mutex);
  const auto found = find(device);
  if (found == failed.end()) return;
  const std::exception_ptr error = found->error;
  if (found->holders == 0) failed.erase(found);
  n_failed.store(failed.size());
  std::rethrow_exception(error);
}

void detail::forget_failures(Backend backend) {
  const std::lock_guard lock(mutex);
  std::erase_if(failed, [&](const Failed& f) { return f.device.backend == backend && f.holders == 0; });
  n_failed.store(failed.size());
}

}  // namespace rondo
