// The interface between a test and the fake driver, and the kernels that are there: host functions that stand for
// device code.
//
// The fake is a shared library that the runtime finds as libcuda.so.1 (RONDO_CUDA_PATH). A test opens the same file and
// asks it for its Control; fake_cuda.h does both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace rondo::fake_cuda {

struct Options {
  uint64_t seed = 0;
  int devices = 1;
  size_t bytes = size_t{1} << 30;  // memory of each device; its addresses end at 64 GiB
  double early = 0.02;             // the chance that some queued work runs when more is queued
  bool peers = true;               // devices can access each other's memory
  int init_result = 0;             // of cuInit
  int driver_version = 13000;
  size_t lt_version = 130000;  // of cuBLASLt
  size_t dnn_version = 91900;  // of cuDNN
  std::string name = "fake GPU";
  // Misuse ends the process. Otherwise it is noted (Control::misuses), and the call returns an error.
  bool aborts = true;
  int capability = 90;  // of the devices
  // False: work is counted, checked and ordered, but none of it runs, and device memory is address space only. Programs
  // of real sizes then take seconds. What the host reads back is 0.
  bool executes = true;
  std::string faulty = {};      // a kernel: its launches kill their context. "": none
  bool counts_traffic = false;  // of kernels of CUDA source: Control::traffic(). Slow
  std::string nccl = {};        // what NCCL does: fake_nccl/faults.h. "": as RONDO_FAKE_NCCL says
};

// The bytes that the launches of a kernel moved between memory and the multiprocessors, in sectors of 32 bytes.
//   moved: every request counts, but an operand that fits into the first cache is loaded once a launch (that cache
//     keeps nothing of stores).
//   touched: each sector once a launch, as if the second cache held the launch's operands.
//   ideal: each byte that a launch touches, once.
// An operand that is loaded and then stored counts as both, in each of them.
struct KernelBytes {
  int64_t launches = 0, moved = 0, touched = 0, ideal = 0;
};

// Work that a program enqueued, by its kind and name.
struct Enqueued {
  enum class Kind { kKernel, kProduct, kFill, kCopy, kCollective, kPlan } kind;
  // Of the kernel; the sizes of a product; the direction of a copy; the call of a collective; the nodes of a plan.
  std::string name;
  // A fill or a copy: its bytes. A product: the least alignment that its algorithm relies on. A collective: the bytes
  // that each rank sends over its link.
  int64_t bytes = 0;
  int64_t threads = 0;                      // of a kernel's launch
  double flops = 0;                         // of a product
  uint64_t communicator = 0, sequence = 0;  // of a collective: the same on all its ranks
};

// One entry of the timeline: work, the record of an event, a stream's wait for one, or a wait of the host for an event
// or (event 0) for all of a stream. timeline.h computes times from it.
struct TimedWork {
  enum class Kind { kWork, kRecord, kWait, kHostWait } kind;
  size_t stream = 0;
  int device = 0;
  Enqueued what = {};    // of kWork
  int64_t declared = 0;  // the bytes that the work says it touches; 0: not known
  uint64_t event = 0;    // the number of the record
  int thread = 0;        // of the host, from 0
};
using Timeline = std::vector<TimedWork>;

// Accesses of kernels to global memory (cuda_on_host/machine.h, Traffic).
struct TrafficCount {
  int64_t requests = 0, sectors = 0, ideal_sectors = 0, wide = 0;
};

// A launch as a kernel sees it. `args`: the address of each argument's copy, made by the launch.
struct Launch {
  const char* name;
  unsigned grid[3], block[3], shared_bytes;
  void** args;
};

// The memory that a kernel says it touches, for the check of races.
struct Access {
  const void* address;
  size_t bytes;
  bool writes;
};

// A host function that stands for a kernel. An image that names it is loaded with Control::image().
struct Kernel {
  std::vector<size_t> argument_bytes;
  // Does the kernel's work for the whole grid. Throw DeviceFault for what kills a context.
  std::function<void(const Launch&)> run;
  // Null: not known. The blocks that the arguments point to then count as used.
  std::function<std::vector<Access>(const Launch&)> accesses;
  int most_threads = 1024;  // of a block
  unsigned static_shared = 0;
  // The same as CUDA C++, under the name with which it is registered: for RONDO_TEST_CUDA=real. Empty: on the fake
  // only.
  std::string source = {};
};

// The kinds of memory that an allocation asks for: the device's memory, page-locked memory of the host, memory for
// code.
using Memories = unsigned;
inline constexpr Memories kDeviceMemory = 1, kPinnedMemory = 2, kCodeMemory = 4, kAllMemories = 7;

// A product that cuBLASLt's heuristic is asked about, by columns as the library sees it.
struct LtQuestion {
  int64_t m, n, k, batch;
  bool transpose_a, transpose_b;
  bool has_bias, has_gelu;
  int64_t ld[3];       // of A, B and D
  int type_a, type_d;  // cudaDataType_t
  uint32_t alignment_a, alignment_b;
};
// cublasLt.h, cublasLtMatmulAlgoGetHeuristic and cublasLtMatmul: the ways to say that a product cannot be run.
enum class LtAnswer {
  kAlgorithms,  // it can
  kNotSupported,
  kNone,    // success, and a count of 0
  kStates,  // success, and algorithms whose `state` says that they cannot be used
  kRefusedByMatmul,
};

struct DeviceFault {
  int result;  // CUresult
};

struct Counts {
  int64_t allocations = 0;  // of all kinds, ever
  int64_t blocks = 0;       // of device memory that are not freed
  int64_t pinned = 0;       // blocks of page-locked memory that are not freed
  int64_t launches = 0, copies = 0, host_waits = 0, contexts = 0, streams = 0, events = 0, modules = 0;
  int64_t products = 0, lt_handles = 0;  // of cuBLASLt
  int64_t lt_descriptors = 0;            // handles, descriptors, layouts and preferences that are not destroyed
  int64_t communicators = 0;             // of NCCL that are neither destroyed nor aborted
  int64_t collectives = 0;               // that were enqueued, ever
  int64_t plans = 0, dnn_handles = 0;    // of cuDNN: runs, ever; handles that are not destroyed
};

class Control {
 public:
  virtual ~Control() = default;
  // Forgets everything; the driver is as new. What the runtime holds of it is invalid afterwards.
  virtual void reset(const Options& options) = 0;
  virtual void register_kernel(const std::string& name, Kernel kernel) = 0;
  // An image with these kernels, as cuModuleLoadData takes it.
  virtual std::string image(const std::vector<std::string>& kernels) const = 0;
  // The allocations of these kinds from the n-th on (1 is the next), so many of them, find no memory. Counted are
  // allocations of all kinds that are asked for here.
  virtual void fail_allocations(int64_t n, int64_t how_many, Memories kinds = kAllMemories) = 0;
  // For images that are none of image(): what kernels they hold. An image without kernels is invalid. Without a loader,
  // such an image is CUDA source (source.h). Stays until the next reset().
  using Loader = std::function<std::vector<std::pair<std::string, Kernel>>(const std::string& image)>;
  virtual void set_loader(Loader loader) = 0;
  // Changes CUDA source when it is loaded: planted bugs. Stays until the next reset().
  using Edit = std::function<std::string(const std::string& source)>;
  virtual void set_edit(Edit edit) = 0;
  // cuBLASLt's answer for products; without it, there is an algorithm for each. Stays until the next reset().
  using LtOracle = std::function<LtAnswer(const LtQuestion&)>;
  virtual void set_lt_oracle(LtOracle oracle) = 0;
  // True: cuDNN has no engine for the graph, whose nodes are given as "kind/function" each. Stays until the next
  // reset().
  using DnnOracle = std::function<bool(const std::string& graph)>;
  virtual void set_dnn_oracle(DnnOracle oracle) = 0;
  // The driver is gone, as at the end of a process: every call fails.
  virtual void shut_down() = 0;
  virtual Counts counts() const = 0;
  virtual int64_t queued() const = 0;
  // The time that this thread has spent in the driver's and cuBLASLt's functions, all work that they ran included; and
  // how often it called one. Measuring costs about two reads of the processor's clock for each call, which are not in
  // it.
  virtual double seconds_inside() const = 0;
  virtual int64_t calls_inside() const = 0;
  virtual std::vector<std::string> misuses() const = 0;
  // The traffic of all that ran since the last reset() with Options::counts_traffic, by kernel.
  virtual std::vector<std::pair<std::string, TrafficCount>> traffic() const = 0;
  // The work that was enqueued since the last call. Nothing is kept before the first one.
  virtual std::vector<Enqueued> take_journal() = 0;
  // What the host enqueued, recorded and waited for since the last call, in its order. Nothing is kept before the first
  // one. Queries of events are no waits.
  virtual Timeline take_timeline() = 0;
  // From now on, bytes that kernels move are counted, which is slow.
  virtual void count_bytes() = 0;
  // By name of the kernel, since then or since the last call.
  virtual std::map<std::string, KernelBytes> take_kernel_bytes() = 0;
};

}  // namespace rondo::fake_cuda

// The functions that the shared library exports beside the driver's.
extern "C" rondo::fake_cuda::Control* fake_cuda_control();
