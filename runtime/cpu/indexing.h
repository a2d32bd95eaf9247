// Gathers, scatters and losses on CPU. A bad index throws after the loop, with its position: nothing is read or written
// out of bounds.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

void embedding_kernel(const KernelContext& context);       // weight (V, C), indices -> (..., C)
void embedding_grad_kernel(const KernelContext& context);  // grad (..., C), indices -> (V, C)
void embedding_grad_onto_kernel(const KernelContext& context);  // total (V, C), grad (..., C), indices -> (V, C), may be total
// logits (N, V), target (N) -> loss (scalar or N), logsumexp (N)
void cross_entropy_kernel(const KernelContext& context);
// grad, logits, target, logsumexp -> dlogits (N, V)
void cross_entropy_grad_kernel(const KernelContext& context);

}  // namespace rondo::cpu
