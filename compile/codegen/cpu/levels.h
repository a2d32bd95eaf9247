// How often each value of a loop kernel is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// When a value changes. Note [Levels]: a value is computed at the outermost place where its operands are known, so that
// no loop-invariant code motion is needed. Moving a load outwards past stores is sound because an output may alias an
// input only element for element (loop_ir.h), and an element that is invariant in an input is then written at most
// once.
enum class Level : uint8_t {
  kKernel,  // once per call
  kRow,     // once per row
  kColumn,  // a vector for each step of kLanes columns
};

// Operands at (row, 0): changes with the row only if an axis moves it.
bool moves_with_row(const Operand& operand);

// By instruction.
std::vector<Level> levels_of(const LoopKernel& kernel);

}  // namespace rondo::compile
