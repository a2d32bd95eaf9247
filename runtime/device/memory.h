// A report of memory use: bytes by purpose at the moment of peak use, and the call that caused the peak.
//
//   const memory::Recording recording;               // starts here
//   for (...) train_step();
//   puts(memory::to_string(recording.report()).c_str());
//
// Purposes: leaves that require grad and registered tensors of modules are parameters. A .grad is a gradient, and so is
// a gradient that an op computes in its forward. Optimizers have states. Other saved tensors are activations.
// Everything else is workspace. Activations in host memory are counted only after a recording has started; all other
// purposes are always counted. Views and borrowed memory (a mapped file) do not count. Without a recording the cost is
// one relaxed load for each allocation, op and node. Thread safety: everything here may be called from any thread;
// blocks of all threads are counted.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator_stats.h"
#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo::memory {

// All numbers are bytes of host memory. Other devices count their own (BackendTable::stats).
struct Report {
  // In use at the peak, by purpose.
  int64_t parameters = 0;   // and buffers of modules
  int64_t gradients = 0;    // in .grad
  int64_t states = 0;       // of optimizers
  int64_t activations = 0;  // saved for backward
  int64_t workspace = 0;    // the rest: arenas, scratch memory, intermediate values
  // The maximum of activations at any time. It may be reached before the peak, because backward allocates gradients
  // while it frees activations.
  int64_t most_activations = 0;
  // Held by the allocator but not in use: freed blocks kept for reuse, and the padding of blocks.
  int64_t cached = 0;
  // Resident memory outside of the allocator: code, stacks, memory of libraries. 0 if the resident size is not known.
  int64_t outside = 0;
  // The call that allocated the block which made the peak: "matmul, in backward of linear (train.cc:41)".
  std::string cause;
  // The highest resident memory since the process began, as the system counts it. total() should be close to it, unless
  // more was in use before the recording began.
  int64_t process_peak = 0;

  int64_t in_use() const { return parameters + gradients + states + activations + workspace; }
  int64_t total() const { return in_use() + cached + outside; }
};

// Returns a table of a dozen lines, in MB (1 MB = 1000000 bytes).
std::string to_string(const Report& report);

// Records host memory while it lives. (For other devices use stats(device).) Only one may exist: a second throws Error.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  // Returns the report so far.
  Report report() const;
  // Forgets the peak: it starts again from the memory that is in use now.
  void restart();

 private:
  int64_t outside_at_start_;
};

// Gives memory that Rondo keeps for reuse back to the system: freed host blocks, freed blocks of every device in use,
// and caches, which fill again when needed. Memory in use stays. Throws DeviceError if a device fails, after everything
// else is done.
// | cache                                        | bound                              | trim()                       |
// |----------------------------------------------|------------------------------------|------------------------------|
// | freed blocks of memory above 64 KB           | allocator::set_cache_limit()       | empties it                   |
// | smaller freed blocks                         | 26 MB a thread                     | empties them (others later)  |
// | freed tensor handles                         | 256 a thread                       | keeps them, 64 KB            |
// | matrix products as oneDNN primitives         | the most recent 1024               | empties it                   |
// | pages of the code generator's own code       | none; memory that grows empties it | gives them back              |
// | generated kernels that no region holds       | 4096 kernels                       | empties it                   |
// | recordings of a compiled region              | CompileOptions::max_entries        | keeps them: they are in use  |
// | 16-bit copies of parameters (lowered.h)      | half of the parameters' bytes      | keeps them: they are in use  |
// | free pages of the C library's heap           | none                               | gives them back (glibc)      |
void trim();

// Limits the bytes that the allocator of a device may take from the system for this process: blocks in use and freed
// blocks that are kept for reuse (AllocatorStats::bytes_reserved). If a block does not fit, the caches are emptied; if
// it still does not fit, OutOfMemoryError is thrown. 0 is no limit, the default. A limit below the bytes in use frees
// nothing. Throws Error if `bytes` is negative, or if there is no such device. Memory that holds no tensors does not
// count (code, mapped files, tables of a tokenizer).
void set_limit(int64_t bytes, Device device = kCPU);
int64_t limit(Device device = kCPU);
AllocatorStats stats(Device device);
// Returns the host memory that this process may use: the least of the machine's memory, its control group's limit and
// limit().
int64_t usable();

// For the runtime: from now on trim() calls `empty`. A cache in another folder registers itself when it is created.
void on_trim(void (*empty)());

}  // namespace rondo::memory
#pragma GCC visibility pop
