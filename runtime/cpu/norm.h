// Row-wise normalisations on CPU: one pass over memory each, bit-equal to their decompositions in ops/norm.cc.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

void layer_norm_kernel(const KernelContext& context);       // x, weight, bias -> y, mean, rstd
void layer_norm_grad_kernel(const KernelContext& context);  // grad, x, weight, mean, rstd -> dx, dweight, dbias
void rms_norm_kernel(const KernelContext& context);         // x, weight -> y, rstd
void rms_norm_grad_kernel(const KernelContext& context);    // grad, x, weight, rstd -> dx, dweight
void softmax_kernel(const KernelContext& context);
void softmax_grad_kernel(const KernelContext& context);  // grad, y -> dx
void log_softmax_kernel(const KernelContext& context);
void log_softmax_grad_kernel(const KernelContext& context);  // grad, y -> dx

}  // namespace rondo::cpu
