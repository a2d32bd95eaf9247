// Scalar: a number that a kernel reads besides its arrays. The kernel sees a double. (A number that never changes is a
// constant in the code instead: LoopOp::kConst.)
#pragma once

#include <cstdint>

namespace rondo::compile {

struct Scalar {
  enum class Kind : uint8_t {
    // A float attribute of a node of the graph: an argument of a run (exec/floats.h), known when the run begins.
    kArgument,
    // Read from device memory when the kernel runs, so that earlier work on the device may compute it. Kernels of
    // graphs read such numbers as operands of one element. A kernel that runs on a table reads the row of scalars
    // that belongs to the item (TableItem::scalars): learning rates, factors of gradients, anything that changes from
    // step to step.
    kDevice,
  } kind = Kind::kArgument;
  int32_t node = -1;     // kArgument: the node
  int32_t position = 0;  // kArgument: index among the node's floats; kDevice: index in the item's row
  friend bool operator==(const Scalar&, const Scalar&) = default;
};

}  // namespace rondo::compile
