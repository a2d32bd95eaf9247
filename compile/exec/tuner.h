// The fastest of several ways to run one launch, measured once per machine (Mode::kMaxAutotune).
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rondo/compile/jit/code_store.h"
#include "rondo/runtime/device.h"

namespace rondo::compile {

// Thread safe; measuring is done by one thread at a time.
class Tuner {
 public:
  explicit Tuner(DiskCacheOptions disk) : disk_(std::move(disk), target_of(kCPU).key()) {}
  // The one of this process, with the disk cache that the environment names. Never destroyed.
  static Tuner& instance();

  // The position of the fastest candidate: as measured before, in this process or another one on such a machine, else
  // measured now, on the compute stream of `device`. `what` says all that the times depend on. The first candidate wins
  // unless another is clearly faster.
  int fastest(const std::string& what, std::span<const std::function<void()>> candidates, Device device = kCPU);
  // Choices that were measured, not remembered.
  int64_t measured() const { return measured_.load(); }

 private:
  // The position, and each candidate's time in seconds.
  int measure(std::span<const std::function<void()>> candidates, Device device, std::vector<double>& best);

  std::mutex mutex_;
  std::unordered_map<std::string, int> known_;
  DiskCache disk_;
  std::atomic<int64_t> measured_{0};
};

}  // namespace rondo::compile
