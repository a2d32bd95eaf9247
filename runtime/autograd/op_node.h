// Puts calls of ops on the tape. dispatch/ calls these functions when a gradient is needed.
#pragma once

#include <span>

#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/op/op.h"

namespace rondo::autograd {

// Puts a node for a call of `op` on the tape and makes it the history of `outputs`.
void record_call(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
                 std::source_location where);
// As record_call, for a call that overwrote `target`. If target is a view, its base gets a new history, too. `inputs`
// are the operands before the write: inputs[0] has the old history, and the old values if the op saves them.
void record_in_place(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& target,
                     std::source_location where);
// As record_call, for an op without a gradient: a backward that reaches it throws an Error that names the op.
void record_nondifferentiable(const OpDef& op, std::span<const Tensor* const> inputs, std::span<Tensor> outputs,
                              std::source_location where);

}  // namespace rondo::autograd
