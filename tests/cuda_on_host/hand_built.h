// Loop kernels of every kind, built by hand.
#pragma once

#include "rondo/tests/cuda_on_host/emitted.h"

namespace rondo::compile::cuda {

// x - max(x), its exponentials' sum, and both results for each row: two reductions, one after the other.
inline LoopKernel softmax(DType type, int64_t rows, int64_t cols) {
  const DType compute = compute_dtype(type);
  KernelBuilder b("softmax", rows, cols, 3);
  const int32_t x = b.dense(type), y = b.dense(type, true), sums = b.per_row(compute, true);
  const LoopValue max = b.stage(0).reduce(LoopOp::kReduceMax, b.load(x, compute));
  const LoopValue e = scalar::exp(b.stage(1).emit(LoopOp::kSub, compute, b.load(x, compute), max));
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, e);
  b.stage(2).in_row().store(sums, sum);
  const LoopValue again = scalar::exp(b.in_column().emit(LoopOp::kSub, compute, b.load(x, compute), max));
  b.store(y, b.emit(LoopOp::kDiv, compute, again, sum));
  return b.kernel;
}
// The same over the columns of (outer, cols, inner): a kernel along rows.
inline LoopKernel softmax_along_rows(DType type, int64_t outer, int64_t cols, int64_t inner) {
  LoopKernel kernel = softmax(type, outer * inner, cols);
  kernel.inner = inner;
  for (Operand& operand : kernel.operands) {
    if (operand.col_stride == 0) continue;
    operand.axes = {{inner, outer, cols * inner}, {1, inner, 1}};
    operand.col_stride = inner;
  }
  return kernel;
}
// Like layer norm backward: reductions of a row, results for the row's elements, and two column sums.
inline LoopKernel norm_backward(DType type, int64_t rows, int64_t cols) {
  const DType compute = compute_dtype(type);
  KernelBuilder b("norm_backward", rows, cols, 2);
  const int32_t x = b.dense(type), g = b.dense(type), rstd = b.per_row(compute), gx = b.dense(type, true);
  const int32_t gw = b.partial(compute), gb = b.partial(compute);
  const LoopValue product = b.stage(0).emit(LoopOp::kMul, compute, b.load(x, compute), b.load(g, compute));
  const LoopValue dot = b.reduce(LoopOp::kReduceSum, product);
  const LoopValue scaled = b.stage(1).in_row().emit(LoopOp::kMul, compute, dot, b.load(rstd, compute));
  const LoopValue gv = b.in_column().load(g, compute), xv = b.load(x, compute);
  b.store(gx, b.emit(LoopOp::kSub, compute, gv, b.emit(LoopOp::kMul, compute, xv, scaled)));
  b.column_sum(gw, b.emit(LoopOp::kMul, compute, gv, xv));
  b.column_sum(gb, gv);
  split(b.kernel);
  return b.kernel;
}
// A bias gradient, with a value for each row and an elementwise result beside it.
inline LoopKernel bias_backward(DType type, int64_t rows, int64_t cols) {
  const DType compute = compute_dtype(type);
  KernelBuilder b("bias_backward", rows, cols);
  const int32_t g = b.dense(type), w = b.per_row(compute), out = b.dense(type, true), sum = b.partial(compute);
  const LoopValue weight = b.in_row().load(w, compute);
  const LoopValue v = b.in_column().emit(LoopOp::kMul, compute, b.load(g, compute), weight);
  b.store(out, v);
  b.column_sum(sum, v);
  split(b.kernel);
  return b.kernel;
}

// y = s x and t = s + sum(x), where operands y (2) and t (3) may be x (0) and s (1).
inline LoopKernel in_place(int64_t rows, int64_t cols) {
  KernelBuilder b("in_place", rows, cols, 2);
  const int32_t x = b.dense(kF32), s = b.per_row(kF32), y = b.dense(kF32, true), t = b.per_row(kF32, true);
  const LoopValue scale = b.stage(0).in_row().load(s, kF32);
  const LoopValue sum = b.in_column().reduce(LoopOp::kReduceSum, b.load(x, kF32));
  b.stage(1).in_row().store(t, b.emit(LoopOp::kAdd, kF32, scale, sum));
  b.in_column().store(y, b.emit(LoopOp::kMul, kF32, b.load(x, kF32), scale));
  return b.kernel;
}

// y = s x and t = s + 1 in one stage: no reduction has the threads of a row wait before one of them writes t over s.
inline LoopKernel in_place_at_once(int64_t rows, int64_t cols) {
  KernelBuilder b("in_place_at_once", rows, cols);
  const int32_t x = b.dense(kF32), s = b.per_row(kF32), y = b.dense(kF32, true), t = b.per_row(kF32, true);
  const LoopValue scale = b.in_row().load(s, kF32);
  b.store(t, b.emit(LoopOp::kAdd, kF32, scale, b.constant(1, kF32)));
  b.in_column().store(y, b.emit(LoopOp::kMul, kF32, b.load(x, kF32), scale));
  return b.kernel;
}

// y = x + z, where x is [cols, rows] in memory, and so is a second output.
inline LoopKernel transposed(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b("transposed", rows, cols);
  const int32_t x = b.operand(type, {{1, rows, 1}}, rows), z = b.dense(type), y = b.dense(type, true);
  const int32_t t = b.operand(type, {{1, rows, 1}}, rows, true);
  const DType compute = compute_dtype(type);
  const LoopValue v = b.emit(LoopOp::kAdd, compute, b.load(x, compute), b.load(z, compute));
  b.store(y, v);
  b.store(t, v);
  return b.kernel;
}
// p = p - lr (m = beta m + (1 - beta) g), and p as bf16 besides: what an optimizer does, in a line.
inline LoopKernel momentum() {
  KernelBuilder b("momentum", 1, 64);
  b.kernel.split_columns = true;
  const int32_t g = b.dense(kBF16), m = b.dense(kF32), p = b.dense(kF32);
  const int32_t new_m = b.dense(kF32, true), new_p = b.dense(kF32, true), copy = b.dense(kBF16, true);
  for (Operand& operand : b.kernel.operands) operand.axes.clear();
  const LoopValue beta = b.in_row().scalar(0), rest = b.emit(LoopOp::kSub, kF32, b.constant(1, kF32), beta),
                  lr = b.scalar(1);
  const LoopValue vm = b.in_column().emit(LoopOp::kMul, kF32, b.load(m, kF32), beta);
  const LoopValue sum = b.emit(LoopOp::kAdd, kF32, vm, b.emit(LoopOp::kMul, kF32, b.load(g, kF32), rest));
  b.store(new_m, sum);
  const LoopValue vp = b.emit(LoopOp::kSub, kF32, b.load(p, kF32), b.emit(LoopOp::kMul, kF32, sum, lr));
  b.store(new_p, vp);
  b.store(copy, vp);
  return b.kernel;
}

}  // namespace rondo::compile::cuda
