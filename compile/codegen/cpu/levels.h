// How often each value of a loop kernel is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// How often a value is computed. Note [Levels]: a value is computed at the outermost level where its operands are
// known, so no loop-invariant code motion is needed. Moving a load outwards past stores is sound: an output may alias
// an input only element for element (loop_ir.h). So an element that an invariant load reads is stored at most once,
// after the load.
enum class Level : uint8_t {
  kKernel,  // once per call
  kRow,     // once per row
  kColumn,  // a vector for each step of kLanes columns
};

// True if the operand's address at (row, 0) changes with the row, because an axis depends on it.
bool moves_with_row(const Operand& operand);

// Returns the level of each instruction.
std::vector<Level> levels_of(const LoopKernel& kernel);

}  // namespace rondo::compile
