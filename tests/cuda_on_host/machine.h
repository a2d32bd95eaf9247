// Runs kernels of CUDA C++ on the host: START HERE for tests/cuda_on_host/. A thread of a block is a fiber; it runs
// until it comes to a barrier or shuffle, then another one does, in an order that the caller chooses. In kDrift, some
// warps run far ahead of others, as they may on a device. Blocks run one after the other. What a device would pass over
// in silence is a Fault: a barrier that some threads do not reach, a shuffle from a lane that takes no part, a write
// beyond a shared variable, an access beyond a DeviceBuffer.
//
//   const KernelFiles files("softmax", source);  // kernel_files.h: compiled by the host's compiler
//   launch(files.kernel(0), {.x = 10, .threads = 256}, parameters, Order::kReverse);
//
// Where kernels are compiled with TSan, each fiber is a thread to it: a missing __syncthreads() is a race that it
// reports. Not thread safe.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "rondo/tests/cuda_on_host/cuda_on_host.h"

namespace rondo::cuda_on_host {

using ::cuda_on_host::kWarp;
using ::cuda_on_host::Place;
using ::cuda_on_host::SharedMemory;
using ::cuda_on_host::View;

// The sanitizer that kernels are compiled with. ASan and TSan end the process at the first error that they see, before
// the machine can make it a Fault.
enum class Sanitizer { kNone, kAddress, kThread };
extern const Sanitizer kSanitizer;

// A kernel did what is an error on a device. The message names the kernel, the block and the thread.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Kernel {
  std::string name;
  void (*call)(void** parameters) = nullptr;
  SharedMemory shared = {};
};
struct GridSize {
  int64_t x = 1, y = 1;  // blocks
  int threads = 1;       // of a block, at most 1024
};
// The order of threads, and of blocks. In the first three, every thread runs to its next barrier or shuffle before one
// runs on from there. kDrift: a warp by itself runs over some of its own barriers and shuffles, or as far as it can,
// while the others stand still; then another one does. Random orders depend on the seed only, and differ from barrier
// to barrier.
enum class Order { kForward, kReverse, kRandom, kDrift };
inline constexpr Order kEveryOrder[] = {Order::kForward, Order::kReverse, Order::kRandom, Order::kDrift};

// Accesses of the warps of a launch, through the functions of device_math. A request is one access of a warp's threads
// in one line of the kernel: the n-th of each thread together. A device moves global memory in sectors, and shared
// memory in waves that take one word from each bank; the ideal is as many as the request's different bytes fill.
struct Traffic {
  static constexpr int kSector = 32, kBanks = 32, kWord = 4;
  int64_t requests = 0, sectors = 0, ideal_sectors = 0;
  int64_t wide = 0;  // accesses of 16 bytes
  int64_t shared_requests = 0, waves = 0, ideal_waves = 0;
  // For each sector of global memory: how often it was asked for, and which of its bytes were (a bit for each). What is
  // loaded and stored is in both.
  struct Sector {
    int64_t requests = 0;
    uint32_t bytes = 0;
  };
  std::unordered_map<uintptr_t, Sector> loaded, stored;
  double per_ideal() const { return ideal_sectors == 0 ? 1.0 : double(sectors) / double(ideal_sectors); }
  double waves_per_ideal() const { return ideal_waves == 0 ? 1.0 : double(waves) / double(ideal_waves); }
};

// `parameters`: the address of each parameter's value. Throws Fault. `traffic`: counted if not null (slow; not with
// TSan).
void launch(const Kernel& kernel, const GridSize& grid, void** parameters, Order order, uint64_t seed = 1,
            Traffic* traffic = nullptr);
// The buffers that kernels are bound to.
const View* view();

// Memory of a kernel's operand between two guards, at the end or at the beginning of its pages; what is left of these
// is filled with NaN. An access to a guard is a Fault. `shift`: bytes between the operand and that side.
class DeviceBuffer {
 public:
  enum class Side { kEnd, kBegin };
  DeviceBuffer(size_t bytes, Side side, size_t shift = 0);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  // True unless something was written beside the operand.
  bool is_intact() const;

 private:
  template <class Use> void for_rest(Use use) const;
  size_t bytes_, mapped_;
  char *pages_, *data_;
};

// True if `address` lies in a guard of a DeviceBuffer.
bool is_guard(const void* address);

}  // namespace rondo::cuda_on_host
