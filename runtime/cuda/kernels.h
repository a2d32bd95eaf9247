// CUDA's hand-written kernels. Each is defined in the file of its family, and a table (kernels.cc) says to which op it
// belongs. A new kernel needs its code in that file, a line here, and a row in the table.
//
// ops/kernels.h says what the kernel of each name computes. Kernels enqueue launches and return. Their results are bit
// for bit those of the CPU's kernels, except for products, convolutions, attention and cross_entropy, which add in
// another order. An index out of range is skipped, and the next call that waits for the device throws.
#pragma once

#include <memory>
#include <span>

#include "rondo/runtime/op/op.h"

namespace rondo::cuda {

// Returns an op's kernels (BackendTable::own_kernels): those of its row of the table. An op without a row has
// elementwise_kernel() if it has a body, and no kernel if it has none.
const BackendEntry& own_kernels(const OpDef& op);

// loops.cc: every op with a body.
void elementwise_kernel(const KernelContext& context);

// cast.cc
void cast_kernel(const KernelContext& context);
void copy_kernel(const KernelContext& context);
void overwrite_kernel(const KernelContext& context);
void window_copy_kernel(const KernelContext& context);

// factory.cc
void fill_kernel(const KernelContext& context);
void zeros_kernel(const KernelContext& context);
void arange_kernel(const KernelContext& context);

// random.cc
void draw_kernel(const KernelContext& context);
void draw_integers_kernel(const KernelContext& context);

// reduction.cc
void sum_kernel(const KernelContext& context);
void max_kernel(const KernelContext& context);
void min_kernel(const KernelContext& context);
void any_kernel(const KernelContext& context);
void all_kernel(const KernelContext& context);

// matmul.cc
void matmul_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant);
void linear_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant);
bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact);

// convolution.cc
void conv2d_kernel(const KernelContext& context);
void conv2d_grad_input_kernel(const KernelContext& context);
void conv2d_grad_weight_kernel(const KernelContext& context);

// attention_kernel.cc. Unlike the CPU's kernel, attention_grad_kernel has no output for the gradient of the scores.
void attention_kernel(const KernelContext& context);
void attention_grad_kernel(const KernelContext& context);

// rotary.cc
void rotary_kernel(const KernelContext& context);

// dropout.cc
void dropout_kernel(const KernelContext& context);

// embedding.cc
void embedding_kernel(const KernelContext& context);
void embedding_grad_kernel(const KernelContext& context);
void embedding_grad_onto_kernel(const KernelContext& context);

// parts.cc
void cat_kernel(const KernelContext& context);
void slice_grad_kernel(const KernelContext& context);

// triangle.cc
void tril_kernel(const KernelContext& context);
void triu_kernel(const KernelContext& context);

// indexing.cc
void gather_kernel(const KernelContext& context);
void check_indices_kernel(const KernelContext& context);
void scatter_kernel(const KernelContext& context);
void scatter_sum_kernel(const KernelContext& context);
void write_rows_kernel(const KernelContext& context);
void cumsum_kernel(const KernelContext& context);

// segments.cc
void sort_segments_kernel(const KernelContext& context);
void sum_segments_kernel(const KernelContext& context);

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

}  // namespace rondo::cuda
