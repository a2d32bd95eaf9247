// The facts of an architecture that the stages shared by all targets need. Plain data.
#pragma once

#include <cstdint>

#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::compile {

struct Capabilities {
  // The most ops of one kernel. Twice as many ops take more than twice as long to compile, so every target has a limit.
  int32_t most_ops = 128;
  int32_t most_operands = INT32_MAX;
  // In bytes, a power of two: the alignment of every value in the arena, as needed for the widest accesses.
  int64_t alignment = static_cast<int64_t>(kAlignment);
  // With fewer elements, a second host thread is not worth waking. 0: the host does not split launches.
  int64_t grain = 1 << 14;
  // True if the device's copy function (BackendTable::copy) is as fast as a kernel that only copies.
  bool copies = false;
  // True if a launch costs more than adding up partial sums does. Then the sums of several kernels are gathered, and
  // one launch adds up all of them.
  bool gathers_sums = false;
  // True if convolutions convert images that are not channels last: Note [Chosen layouts] in transform/lay_out.h.
  bool prefers_channels_last = false;
  // True if products add to, or activate, their own result faster than a separate kernel does. A product with such an
  // epilogue that writes f32 takes an f32 bias, whatever the dtype of its operands.
  bool epilogues_pay = false;
};

}  // namespace rondo::compile
