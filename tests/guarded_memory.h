// Host memory between guard pages: each block that the CPU's allocator is asked for, operands, results and scratchpads
// alike, begins at the start of readable memory or ends at its end.
//
//   GuardedMemory memory;                        // while it lives
//   memory.place(GuardedMemory::Side::kRight, "conv2d of 3 channels, seed 17");
//   const Tensor x = memory.tensor(values, {2, 3}, {3, 1}, kF32);
//   ops::exp(x);
//   EXPECT_EQ(memory.damage(), "");
//
// Note [Slack]. The allocator gives blocks at multiples of kAlignment (64 bytes), and whole multiples of as many bytes
// (allocator.cc, block_size). So a kernel may read up to the next multiple of 64 bytes behind what it asked for. It may
// not write there, and nothing in front. A tensor need not begin or end at a block's ends, and a mapped file has no
// slack: what tensor() makes ends at the page's end to the byte.
//
// An access outside ends the process, after a line that says what place() was told and how far off the access is. A
// write into slack is damage(). New blocks hold NaN in every float type. Blocks that lived before are left alone.
// Thread safety: allocations of any thread; place() while nothing runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "rondo/runtime/tensor/tensor.h"

namespace rondo::test {

class GuardedMemory {
 public:
  enum class Side { kLeft, kRight };

  // Changes the table of the CPU's backend. One at a time.
  GuardedMemory();
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // Where blocks lie from now on; `what` is for the message of a fault.
  void place(Side side, const std::string& what);
  // A strided tensor of these values, in logical order. Nothing lies between its ends and the guard page, on the side
  // that place() chose. Gaps between its elements hold NaN.
  Tensor tensor(std::span<const double> values, const Dims& sizes, const Dims& strides, DType dtype);
  // What was written outside of blocks that have been freed, since the last call; empty if nothing was.
  std::string damage();
};

}  // namespace rondo::test
