// The kernels that op definitions name, by backend. Each is defined in the backend's folder, in the file of its family.
// A new kernel is that file and, in the op's entry, its name in `on`; a kernel of a new name is also a line of
// kernel_list.h.
//
// Sums and norms are bit-equal to their decompositions. CUDA's kernels enqueue launches and return; their bits are the
// CPU's but for products, attention and cross_entropy (sums in another order) and the normal distribution of draw
// (CUDA's log and cos in f64). There, an index out of range is skipped, and the next call that waits for the device
// throws.
#pragma once

#include <memory>
#include <span>

#include "rondo/runtime/op/op.h"

namespace rondo::cpu {
#include "rondo/runtime/ops/kernel_list.h"
}
namespace rondo::cuda {
#include "rondo/runtime/ops/kernel_list.h"
}
