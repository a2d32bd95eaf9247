// The CPU kernels that op definitions name (OpDef::host). Each is defined in cpu/, in the file of its family. A
// handwritten kernel needs that file, a line here, and its name in the op's entry. The kernels of another device are in
// its own folder (cuda/kernels.h).
//
// Sums and norms are bit-equal to their decompositions.
#pragma once

#include <memory>
#include <span>

#include "rondo/runtime/op/op.h"

namespace rondo::cpu {

// loops.cc: runs every elementwise op that has a scalar body (OpDef::body).
void elementwise_kernel(const KernelContext& context);

// cast.cc
// Input 0 -> output 0, of any two dtypes; the input broadcasts. A float that becomes an integer loses its
// fraction; a value out of range becomes the nearest number of the integer type, NaN becomes 0. A u8 gets the low
// byte of the value as i64.
void cast_kernel(const KernelContext& context);
// Input 1 -> output 0, converted as by cast_kernel; the input broadcasts.
void copy_kernel(const KernelContext& context);

// Copies input 0 to output 0, unless they share memory. Then writes input 1, or a number, into a window
// of output 0 (ops/window.h).
void overwrite_kernel(const KernelContext& context);
void window_copy_kernel(const KernelContext& context);  // a window of input 0 -> output 0

// factory.cc: a tensor's first values; the attributes are those of ops/factory.h. Inputs are not read.
void fill_kernel(const KernelContext& context);
void zeros_kernel(const KernelContext& context);
void arange_kernel(const KernelContext& context);
void draw_kernel(const KernelContext& context);
void draw_integers_kernel(const KernelContext& context);

// reduction.cc, in the order of ops/reduction_order.h
void sum_kernel(const KernelContext& context);
void max_kernel(const KernelContext& context);
void min_kernel(const KernelContext& context);
// truth.cc: reads any layout without a copy
void any_kernel(const KernelContext& context);
void all_kernel(const KernelContext& context);

// statistics.cc, bit-equal to the decompositions
void var_mean_kernel(const KernelContext& context);
void std_kernel(const KernelContext& context);

// norm.cc, one pass over memory each
void layer_norm_kernel(const KernelContext& context);       // x, weight, bias -> y, mean, rstd
void layer_norm_grad_kernel(const KernelContext& context);  // grad, x, weight, mean, rstd -> dx, dweight, dbias
void rms_norm_kernel(const KernelContext& context);         // x, weight -> y, rstd
void rms_norm_grad_kernel(const KernelContext& context);    // grad, x, weight, rstd -> dx, dweight

// channel_norm.cc
void batch_norm_kernel(const KernelContext& context);       // x, weight, bias -> y, mean, var
void batch_norm_grad_kernel(const KernelContext& context);  // grad, x, weight, mean, var -> dx, dweight, dbias

// softmax.cc: ints {dim}, or none for the last dimension
void softmax_kernel(const KernelContext& context);
void softmax_grad_kernel(const KernelContext& context);  // grad, y -> dx
void log_softmax_kernel(const KernelContext& context);
void log_softmax_grad_kernel(const KernelContext& context);  // grad, y -> dx

// matmul.cc
// C (..., M, N) = A (..., M, K) B (..., K, N), batch dimensions broadcast.
void matmul_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant);
// y (..., out) = x (..., in) w(out, in)^T + bias
void linear_kernel(const KernelContext& context);
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant);
// True if a product can apply these epilogues itself (AbsorbsFn in op.h). Measured: adding a tensor in f32 gives the
// bits of the separate op, an activation does not. A bf16 result is rounded once instead of twice, or not at all if it
// is widened.
bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact);

// convolution.cc: ints of a Convolution (ops/convolution.h), and the size of a gradient
void conv2d_kernel(const KernelContext& context);              // x, weight, bias -> y
void conv2d_grad_input_kernel(const KernelContext& context);   // grad, weight -> dx
void conv2d_grad_weight_kernel(const KernelContext& context);  // grad, x -> dweight

// pooling.cc: ints of a Convolution, and the kernel's size
void max_pool2d_kernel(const KernelContext& context);  // x -> maxima, their indices

// interpolation.cc: ints of an Interpolation (ops/interpolation.h)
void interpolate_kernel(const KernelContext& context);       // x -> y
void interpolate_grad_kernel(const KernelContext& context);  // grad -> dx

// attention_kernel.cc
void attention_kernel(const KernelContext& context);  // q, k, v, mask -> out, logsumexp
// grad, out, logsumexp, q, k, v, mask -> dq, dk, dv; and the gradient of the scores, if there is an output for it
void attention_grad_kernel(const KernelContext& context);

// rotary.cc: x (..., T, D), cos and sin (T, D/2) in x's compute dtype; ints {inverse}
void rotary_kernel(const KernelContext& context);

// dropout.cc: x, state {seed, offset} -> y
void dropout_kernel(const KernelContext& context);

// embedding.cc
void embedding_kernel(const KernelContext& context);       // weight (V, C), indices -> (..., C)
void embedding_grad_kernel(const KernelContext& context);  // grad (..., C), indices -> (V, C)
void embedding_grad_onto_kernel(
    const KernelContext& context);  // total (V, C), grad (..., C), indices -> (V, C), perhaps total's memory

// parts.cc: any number of parts of one tensor, put together (ops/parts.h)
void cat_kernel(const KernelContext& context);         // ints {dim}
void slice_grad_kernel(const KernelContext& context);  // ints {sizes..., {dim, begin, step} of each operand}

// triangle.cc: elements of each matrix on one side of a diagonal, and zeros; ints {diagonal}
void tril_kernel(const KernelContext& context);
void triu_kernel(const KernelContext& context);

// indexing.cc: elements picked and placed by an index tensor along ints[0] = dim
void gather_kernel(const KernelContext& context);  // x, index -> values
// index, ints {size, Lookup} -> true. Throws what the lookup throws for a bad index (ops/lookup.h).
void check_indices_kernel(const KernelContext& context);
void scatter_kernel(const KernelContext& context);      // x, index, values (or a scalar) -> x with the values written
void scatter_sum_kernel(const KernelContext& context);  // values, index, perhaps x -> sums, or x + sums
void write_rows_kernel(const KernelContext& context);   // x, rows, their indices (B, T) -> x with the rows written
// segments.cc: index (N), ints {segments, Lookup} -> order (N), starts (segments + 1): ops/segments.h
void sort_segments_kernel(const KernelContext& context);
void sum_segments_kernel(const KernelContext& context);  // values (N, ...), starts -> the sum of each segment's rows
void cumsum_kernel(const KernelContext& context);        // ints {dim, reverse}

// sort.cc: orders along one dimension. NaN is larger than every number; equal elements keep their order.
void argmax_kernel(const KernelContext& context);   // ints {dim, smallest}
void argsort_kernel(const KernelContext& context);  // ints {dim, descending}
void topk_kernel(const KernelContext& context);     // ints {k, dim, largest}

// loss.cc. A target out of range throws, with its position, before anything is computed.
// logits (N, V), target (N) -> loss (scalar or N), logsumexp (N)
void cross_entropy_kernel(const KernelContext& context);
// grad, logits, target, logsumexp -> dlogits (N, V)
void cross_entropy_grad_kernel(const KernelContext& context);
// x (N, C), weight (V, C), bias (V) or undefined, target (N) -> loss (scalar or N), and those of dx, dweight, dbias
// that are wanted. They are the gradients for a gradient of 1 at the loss.
void linear_cross_entropy_kernel(const KernelContext& context);
// grad (as the loss), x, weight, bias, target -> dx, dweight, dbias: those that are wanted
void linear_cross_entropy_grad_kernel(const KernelContext& context);
// pixel_loss.cc: logits (B, C, h, w), target (B, H, W) -> loss (scalar), logsumexp (B, H, W)
void pixel_cross_entropy_kernel(const KernelContext& context);
// grad, logits, target, logsumexp -> dlogits
void pixel_cross_entropy_grad_kernel(const KernelContext& context);
// loss.cc: total, factor (a scalar) -> total * factor, in place: nothing is read or written if the factor is 1
void scale_kernel(const KernelContext& context);

}  // namespace rondo::cpu

namespace rondo::ops {

// collective.cc, for every device: copies the operand, and the communicator sums the copies.
void all_reduce_kernel(const KernelContext& context);

}  // namespace rondo::ops
