// Named ranges for NVIDIA's profilers (NVTX). RONDO_CUDA_NVTX=1 turns them on, if libnvtx3interop.so or
// libnvToolsExt.so is found; otherwise a range costs one load of a flag.
#pragma once

#include <atomic>

namespace rondo::cuda {

class Range {
 public:
  explicit Range(const char* name) {
    if (on_.load(std::memory_order_acquire) != 0) [[unlikely]]
      begin(name);
  }
  ~Range() {
    if (begun_) [[unlikely]]
      end();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  // Turns ranges on if RONDO_CUDA_NVTX is 1 and a library is found.
  static void open();

 private:
  void begin(const char* name);
  void end();
  bool begun_ = false;
  static inline std::atomic<int> on_{0};
};

}  // namespace rondo::cuda
