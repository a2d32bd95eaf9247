// A backward of a region, op by op.
#pragma once

#include <span>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/kept_values.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// For second derivatives, hooks inside the region, DetectAnomaly, and what was overwritten: the recording runs again,
// op by op, on the eager tape, and goes backward there. `grads_in[i]` holds what input i has received so far (or
// undefined), and afterwards the new sum; it is empty if no input's gradient is asked for. Throws what the eager ops
// throw.
void backward_eagerly(RegionNode& region, const Binding& binding, const KeptValues::Tensors& saved,
                      std::span<const Tensor> grads_out, std::span<Tensor> grads_in);

}  // namespace rondo::compile
