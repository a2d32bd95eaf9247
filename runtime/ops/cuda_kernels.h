// The kernels that op definitions name for CUDA, each in runtime/cuda/ in the file of its family. They take what the
// CPU's of the same names take (kernels.h), enqueue launches, and return.
//
// Bits are the CPU's but for products, attention and cross_entropy (sums in another order) and the normal distribution
// of draw (CUDA's log and cos in f64). An index out of range is skipped, and the next call that waits for the device
// throws.
#pragma once

#include <memory>
#include <span>

#include "rondo/runtime/op.h"

namespace rondo::cuda {

void elementwise_kernel(const KernelContext& context);  // loops.cc

// cast.cc
void cast_kernel(const KernelContext& context);
void copy_kernel(const KernelContext& context);

// factory.cc
void fill_kernel(const KernelContext& context);
void arange_kernel(const KernelContext& context);
void draw_kernel(const KernelContext& context);

// view.cc
void slice_grad_kernel(const KernelContext& context);
void cat_kernel(const KernelContext& context);

// reduction.cc
void sum_kernel(const KernelContext& context);
void max_kernel(const KernelContext& context);
void min_kernel(const KernelContext& context);

// embedding.cc
void embedding_kernel(const KernelContext& context);
void embedding_grad_kernel(const KernelContext& context);
void embedding_grad_onto_kernel(const KernelContext& context);

// indexing.cc
void gather_kernel(const KernelContext& context);
void scatter_kernel(const KernelContext& context);
void scatter_sum_kernel(const KernelContext& context);
void cumsum_kernel(const KernelContext& context);

// sort.cc
void argmax_kernel(const KernelContext& context);
void argsort_kernel(const KernelContext& context);
void topk_kernel(const KernelContext& context);

// loss.cc
void cross_entropy_kernel(const KernelContext& context);
void cross_entropy_grad_kernel(const KernelContext& context);
void linear_cross_entropy_kernel(const KernelContext& context);
void linear_cross_entropy_grad_kernel(const KernelContext& context);
void scale_kernel(const KernelContext& context);

void rotary_kernel(const KernelContext& context);   // rotary.cc
void dropout_kernel(const KernelContext& context);  // dropout.cc

// matmul.cc, through cuBLASLt
void matmul_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant);
void linear_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant);
// A sum in place or not, then tanh-GELU.
bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact);

// attention_kernel.cc
void attention_kernel(const KernelContext& context);
void attention_grad_kernel(const KernelContext& context);

}  // namespace rondo::cuda
