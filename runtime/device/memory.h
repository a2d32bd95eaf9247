// Where the memory goes: bytes by what they are for, at the moment when most was in use, and what asked for them then.
//
//   const memory::Recording recording;               // from here on
//   for (...) train_step();
//   puts(memory::to_string(recording.report()).c_str());
//
// Leaves that require grad and registered tensors of modules are parameters. A .grad is a gradient; so is a gradient
// that an op computes ahead for its backward. Optimizers have states. Other tensors that the tape saves are
// activations. Everything else is workspace. Activations in host memory are counted from the start of a recording on,
// the others always. Views and foreign memory (a mapped file) do not count. Without a recording, the cost is one
// relaxed load for each allocation, op and node. Thread safety: everything here may be called from any thread; blocks
// of all threads are counted.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator_stats.h"
#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo::memory {

// In bytes. Host memory only: other devices count their own (BackendTable::stats).
struct Report {
  // In use at the peak, by purpose.
  int64_t parameters = 0;   // and buffers of modules
  int64_t gradients = 0;    // in .grad
  int64_t states = 0;       // of optimizers
  int64_t activations = 0;  // saved for backward
  int64_t workspace = 0;    // the rest: arenas, scratchpads, values under way
  // The most that activations took at any time: not always at the peak, as gradients come when activations go.
  int64_t most_activations = 0;
  // Held by the allocator beyond that: freed blocks kept for reuse, and the padding of blocks.
  int64_t cached = 0;
  // Resident, but not the allocator's: code, stacks, the libraries' own memory. Measured from the process; 0 where the
  // system does not tell.
  int64_t outside = 0;
  // The call that asked for the block that made the peak: "matmul, in backward of linear (train.cc:41)".
  std::string cause;
  // The process's highest resident memory, ever, as the system counts it: what total() should come close to, unless
  // more was in use before the recording began.
  int64_t process_peak = 0;

  int64_t in_use() const { return parameters + gradients + states + activations + workspace; }
  int64_t total() const { return in_use() + cached + outside; }
};

// A table of a dozen lines, in MB (1 MB = 1000000 bytes).
std::string to_string(const Report& report);

// Records host memory (a device has stats(device)) while it lives. One at a time: a second one throws Error.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  // So far.
  Report report() const;
  // Forgets the peak: what is in use now is the peak until more is.
  void restart();

 private:
  int64_t outside_at_start_;
};

// Gives back to the system what Rondo keeps for reuse. Nothing in use is touched; what is needed again is made again.
// Every device in use gives back its freed blocks, too. (DeviceError if one refuses; all else is done by then.)
// | cache                                        | bound                              | trim()                       |
// |----------------------------------------------|------------------------------------|------------------------------|
// | freed blocks of memory above 64 KB           | allocator::set_cache_limit()       | empties it                   |
// | smaller freed blocks                         | 26 MB a thread                     | empties; other threads later |
// | freed tensor handles                         | 256 a thread                       | keeps them, 64 KB            |
// | matrix products as oneDNN primitives         | the most recent 1024               | empties it                   |
// | pages of the code generator's own code       | none; memory that grows empties it | gives them back              |
// | generated kernels that no region holds       | 4096 kernels                       | empties it                   |
// | recordings of a compiled region              | CompileOptions::max_entries        | keeps them: they are in use  |
// | 16-bit copies of parameters (lowered.h)      | half of the parameters' bytes      | keeps them: they are in use  |
// | free pages of the C library's heap           | none                               | gives them back (glibc)      |
void trim();

// The most bytes that the allocator of a device may take from the system for this process: blocks in use and freed
// blocks that are kept for reuse (AllocatorStats::bytes_reserved). A block that does not fit empties the caches first,
// then throws OutOfMemoryError. 0: no limit, which is the default. A limit below what is in use frees nothing. Throws
// Error if `bytes` is negative, or if there is no such device. Not counted: memory that is not tensors' (code, mapped
// files, a tokenizer's tables).
void set_limit(int64_t bytes, Device device = kCPU);
int64_t limit(Device device = kCPU);
AllocatorStats stats(Device device);
// The host memory that this process may use: the machine's, its control group's or limit(), whichever is least.
int64_t usable();

// For the runtime: trim() calls `empty` from now on. For a cache of another folder, when it is made.
void on_trim(void (*empty)());

}  // namespace rondo::memory
#pragma GCC visibility pop
