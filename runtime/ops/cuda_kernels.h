// The kernels that op definitions name for CUDA, each in runtime/cuda/ in the file of its family. They take what the
// CPU's of the same names take (kernels.h), enqueue launches, and return.
#pragma once

#include <memory>
#include <span>

#include "rondo/runtime/op.h"

namespace rondo::cuda {

// matmul.cc, through cuBLASLt
void matmul_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant);
void linear_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant);
// A sum in place or not, then tanh-GELU.
bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact);

}  // namespace rondo::cuda
