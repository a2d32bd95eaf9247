// The facts of an architecture that stages shared by all targets must know. Plain data.
#pragma once

#include <cstdint>

#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::compile {

struct Capabilities {
  // The most ops of one kernel. Code takes more than twice as long to generate for twice as many, so every target has a
  // bound.
  int32_t most_ops = 128;
  int32_t most_operands = INT32_MAX;
  // Bytes, a power of two: of every value in the arena, for the widest accesses of the code.
  int64_t alignment = static_cast<int64_t>(kAlignment);
  // Elements that pay for waking a thread of the host. 0: the host does not split launches.
  int64_t grain = 1 << 14;
  // The device's own copy (BackendTable::copy) is as fast as a kernel that only copies.
  bool copies = false;
  // A launch costs more than what it adds up: the partial sums of several kernels wait for each other, and one launch
  // adds up all of them.
  bool gathers_sums = false;
  // Convolutions convert images that are not channels last: Note [Chosen layouts] in transform/lay_out.h.
  bool prefers_channels_last = false;
  // Products add to, or activate, their own result for less than a kernel behind them costs. One that writes f32 takes
  // an f32 bias, whatever its operands are.
  bool epilogues_pay = false;
};

}  // namespace rondo::compile
