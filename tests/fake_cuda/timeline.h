// A virtual clock: how long a device would take for what a program enqueued, without running it.
//
//   FakeCuda cuda({.executes = false});
//   cuda->take_timeline();                      // kept from here on
//   ...                                         // a step
//   const Makespan step = makespan({cuda->take_timeline()}, rates);
//
// Every piece of work takes a time from one table (Rates). A stream works in its order, events order streams, and work
// starts no earlier than the host has enqueued it. A device does one thing of a kind at a time: kernels and products,
// collectives, copies from the host, copies to it. Among streams that want the same, the one that was ready first
// begins. A collective begins when it is the next work of all ranks whose timelines are given.
//
// The times are predictions. A collective does not slow down the kernels beside it here, as it does on a device by some
// multiprocessors and by the memory's bandwidth.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rondo/tests/fake_cuda/control.h"

namespace rondo::fake_cuda {

// Bytes, operations and seconds. The defaults are those of no device in particular.
struct Rates {
  double memory = 2e12;      // bytes a second: kernels, fills, copies on the device
  double products = 3e14;    // operations a second, of a product that does not wait for its bytes
  double link = 2e11;        // bytes a second that a rank sends in collectives
  double host = 2.5e10;      // bytes a second between host and device, each way
  double launch = 2e-6;      // the least time of any work
  double collective = 1e-5;  // what each collective takes beside its bytes
  double enqueue = 0;        // of the host, for each piece of work
  // The bytes of a launch by the kernel's name, as take_kernel_bytes() measures them. Otherwise they are those that the
  // kernel declares. A kernel that is in neither moves so many for each thread.
  std::map<std::string, double> kernel_bytes = {};
  double thread_bytes = 12;
};
double seconds_of(const TimedWork& work, const Rates& rates);

struct Makespan {
  double seconds = 0;        // until the last work has ended, on all devices and hosts
  double computing = 0;      // of one device at most: the sum of its kernels, products, fills and copies on the device
  double communicating = 0;  // likewise, of its collectives
};
// One timeline for each process. Throws Error if some work waits for what never comes.
Makespan makespan(const std::vector<Timeline>& processes, const Rates& rates);

}  // namespace rondo::fake_cuda
