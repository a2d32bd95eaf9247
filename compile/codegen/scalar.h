// Scalar: a number that a kernel reads besides its arrays. The kernel sees a double. (What never changes is no scalar:
// it is a constant in the code, LoopOp::kConst.)
#pragma once

#include <cstdint>

namespace rondo::compile {

struct Scalar {
  enum class Kind : uint8_t {
    // A float attribute of a node of the graph: an argument of a run (exec/floats.h), known when it begins.
    kArgument,
    // Read from device memory when the kernel runs, so that earlier work on the device may compute it. Kernels of
    // graphs read such numbers as operands of one element. The kernel of a table reads the row of scalars that belongs
    // to the item (TableItem::scalars): learning rates, factors of gradients, whatever depends on a step.
    kDevice,
  } kind = Kind::kArgument;
  int32_t node = -1;     // kArgument
  int32_t position = 0;  // kArgument: among the node's floats; kDevice: in the item's row
  friend bool operator==(const Scalar&, const Scalar&) = default;
};

}  // namespace rondo::compile
