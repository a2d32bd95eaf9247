// Twelve blocks that users write from plain ops, for blocks_bench.cc. tests/bench/peers/blocks.py writes the same in
// PyTorch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rondo/runtime/ops/ops.h"

namespace rondo::bench {

// What a block reads; inputs that require a gradient get one. `step` counts calls: a float of the optimizer's formula.
struct BlockInputs {
  std::vector<Tensor> t;
  int64_t step = 0;
};

struct PlainBlock {
  const char* name;
  // For N rows of C columns, in `dtype` where it is a number of the model.
  BlockInputs (*inputs)(int64_t N, int64_t C, DType dtype);
  // The loss; for a block without gradients, what it updates.
  std::vector<Tensor> (*forward)(const BlockInputs& in);
  bool trains = true;
};

std::span<const PlainBlock> plain_blocks();
const PlainBlock& find_block(const std::string& name);  // throws Error if there is none

}  // namespace rondo::bench
