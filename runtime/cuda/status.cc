#include "rondo/runtime/cuda/status.h"

#include "absl/strings/str_cat.h"

namespace rondo::cuda {

uint32_t Calls::note(const char* op, CallSite site, int64_t size, bool at_position) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = next_++;
  if (next_ == 0) next_ = 1;  // 0 says that nothing failed
  calls_.push_back({number, op, std::move(site), size, at_position});
  return number;
}

std::string Calls::describe(const DeviceStatus& status) const {
  const auto position = static_cast<uint32_t>(status.high >> 32);
  const auto index = static_cast<int64_t>(status.high << 32 | (status.low & 0xFFFFFFFFu));
  const std::lock_guard lock(mutex_);
  for (const Call& call : calls_)
    if (call.number == status.call)
      return absl::StrCat(call.op, ": index ", index,
                          call.at_position && position < 0xFFFFFFFFu ? absl::StrCat(" at position ", position) : "",
                          " is out of range for size ", call.size, call.site.text());
  return absl::StrCat("a kernel found an index out of range: ", index);
}

void Calls::forget_older_than(uint32_t call) {
  const std::lock_guard lock(mutex_);
  // Compares by difference, because numbers wrap around.
  while (calls_.size() > kKept && static_cast<int32_t>(calls_.front().number - call) < 0) calls_.pop_front();
}

uint32_t Calls::next() const {
  const std::lock_guard lock(mutex_);
  return next_;
}

}  // namespace rondo::cuda
