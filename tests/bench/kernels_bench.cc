// How fast kernels compile and run. Prints, asserts nothing about time: a look at these lines shows a regression that
// no correctness test sees.
#include <chrono>

#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

template <class F> double seconds(F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
// The fastest of several runs.
template <class F> double best_seconds(F f) {
  double best = seconds(f);
  for (int i = 0; i < 10; ++i) best = std::min(best, seconds(f));
  return best;
}

struct Arrays {
  Arrays(const LoopKernel& kernel) {
    std::mt19937 random(1);
    for (const Operand& operand : kernel.operands)
      buffers.push_back(random_buffer(operand.dtype, elements_of(kernel, operand), random, Samples::kTame));
    for (Buffer& buffer : buffers) {
      pointers.push_back(buffer.data());
      bytes += static_cast<double>(buffer.size());
    }
  }
  std::vector<Buffer> buffers;
  std::vector<void*> pointers;
  double bytes = 0;
};

void report(const LoopKernel& kernel) {
  const double scalars[] = {1e-5, 0.1, 0.9, 0.999, 1e-8, 1.0};
  double compile_s = 1e9;
  std::shared_ptr<Executable> executable;
  for (int i = 0; i < 10; ++i)
    compile_s = std::min(compile_s, seconds([&] { executable = compile_kernels({&kernel, 1}); }));
  Arrays arrays(kernel);
  const std::vector<int64_t> sizes = extents(kernel);
  const int64_t all = kernel.split_columns ? kernel.cols : kernel.rows;
  const int64_t step = kernel.chunk_rows > 0 ? kernel.chunk_rows : all;
  const double elements = static_cast<double>(kernel.rows * kernel.cols);
  const int repeats = static_cast<int>(std::max(1.0, 1e6 / elements));
  const double run_s = best_seconds([&] {
                         for (int n = 0; n < repeats; ++n)
                           for (int64_t at = 0; at < all; at += step)
                             executable->entry(0)(arrays.pointers.data(), scalars, sizes.data(), at,
                                                  std::min(all, at + step));
                       }) /
                       repeats;
  std::printf("%-24s %5lld x %-8lld compile %6.2f ms   %7.3f ns/element  %7.1f GB/s\n", kernel.name.c_str(),
              static_cast<long long>(kernel.rows), static_cast<long long>(kernel.cols), compile_s * 1e3,
              run_s * 1e9 / elements, arrays.bytes / run_s * 1e-9);
}

LoopKernel add(DType type, int64_t n) {
  KernelBuilder b(std::string("add_") + std::string(name_of(type)), 1, n);
  b.kernel.split_columns = true;
  const DType compute = compute_dtype(type);
  const int32_t x = b.dense(type), y = b.dense(type), out = b.dense(type, true);
  b.store(out, b.emit(LoopOp::kAdd, compute, b.load(x, compute), b.load(y, compute)));
  return b.kernel;
}

LoopKernel chain(DType type, int64_t n) {
  KernelBuilder b(std::string("exp_chain_") + std::string(name_of(type)), 1, n);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(type), out = b.dense(type, true);
  LoopValue v = b.load(x, type);
  for (int i = 0; i < 4; ++i) {  // x * sigmoid(x), four times: an exp and a division each
    const LoopValue one = b.constant(1.0, type);
    v = b.emit(LoopOp::kDiv, type, v, b.emit(LoopOp::kAdd, type, one, scalar::exp(b.emit(LoopOp::kNeg, type, v))));
  }
  b.store(out, v);
  return b.kernel;
}

LoopKernel exp_only(DType type, int64_t n) {
  KernelBuilder b(std::string("exp_") + std::string(name_of(type)), 1, n);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(type), out = b.dense(type, true);
  b.store(out, scalar::exp(b.load(x, type)));
  return b.kernel;
}

LoopKernel adamw(int64_t n) {
  KernelBuilder b("adamw_f32", 1, n);
  b.kernel.split_columns = true;
  const int32_t p = b.dense(kF32, true), g = b.dense(kF32), m = b.dense(kF32, true), v = b.dense(kF32, true);
  auto op = [&](LoopOp o, LoopValue x, LoopValue y = {}, LoopValue z = {}) { return b.emit(o, kF32, x, y, z); };
  const LoopValue one = b.constant(1.0, kF32), beta1 = b.scalar(2), beta2 = b.scalar(3), grad = b.load(g, kF32);
  const LoopValue m1 = op(LoopOp::kFma, beta1, b.load(m, kF32), op(LoopOp::kMul, op(LoopOp::kSub, one, beta1), grad));
  const LoopValue v1 = op(LoopOp::kFma, beta2, b.load(v, kF32),
                          op(LoopOp::kMul, op(LoopOp::kSub, one, beta2), op(LoopOp::kMul, grad, grad)));
  const LoopValue step = op(LoopOp::kDiv, m1, op(LoopOp::kAdd, op(LoopOp::kSqrt, v1), b.scalar(4)));
  b.store(p, op(LoopOp::kSub, b.load(p, kF32), op(LoopOp::kMul, b.scalar(1), step)));
  b.store(m, m1);
  b.store(v, v1);
  return b.kernel;
}

LoopKernel softmax(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b(std::string("softmax_") + std::string(name_of(type)), rows, cols, 3);
  const DType compute = compute_dtype(type);
  const int32_t x = b.dense(type), y = b.dense(type, true);
  const LoopValue max = b.reduce(LoopOp::kReduceMax, b.load(x, compute));
  b.stage(1);
  const LoopValue e = scalar::exp(b.emit(LoopOp::kSub, compute, b.load(x, compute), max));
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, e);
  b.stage(2);
  const LoopValue again = scalar::exp(b.emit(LoopOp::kSub, compute, b.load(x, compute), max));
  b.store(y, b.emit(LoopOp::kDiv, compute, again, sum));
  return b.kernel;
}

LoopKernel layer_norm(DType type, int64_t rows, int64_t cols) {
  const DType compute = compute_dtype(type);
  KernelBuilder b(std::string("layer_norm_") + std::string(name_of(type)), rows, cols, 3);
  auto op = [&](LoopOp o, LoopValue x, LoopValue y = {}, LoopValue z = {}) { return b.emit(o, compute, x, y, z); };
  const int32_t x = b.dense(type), w = b.per_column(type), bias = b.per_column(type), y = b.dense(type, true);
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, b.load(x, compute));
  b.stage(1).in_row();
  const LoopValue n = b.constant(static_cast<double>(cols), compute), mean = op(LoopOp::kDiv, sum, n);
  b.in_column();
  const LoopValue d = op(LoopOp::kSub, b.load(x, compute), mean);
  const LoopValue sum2 = b.reduce(LoopOp::kReduceSum, op(LoopOp::kMul, d, d));
  b.stage(2).in_row();
  const LoopValue variance = op(LoopOp::kDiv, sum2, n);
  const LoopValue rstd = op(LoopOp::kDiv, b.constant(1.0, compute),
                            op(LoopOp::kSqrt, op(LoopOp::kAdd, variance, b.scalar(0, compute))));
  b.in_column();
  const LoopValue scaled = op(LoopOp::kMul, op(LoopOp::kSub, b.load(x, compute), mean), rstd);
  b.store(y, op(LoopOp::kFma, scaled, b.load(w, compute), b.load(bias, compute)));
  return b.kernel;
}

LoopKernel column_sums(int64_t rows, int64_t cols) {
  KernelBuilder b("column_sums", rows, cols);
  b.kernel.chunk_rows = column_chunk_rows(rows);
  const int32_t g = b.dense(kF32), x = b.dense(kF32), dw = b.partial(kF32), db = b.partial(kF32);
  const LoopValue vg = b.load(g, kF32);
  b.column_sum(db, vg);
  b.column_sum(dw, b.emit(LoopOp::kMul, kF32, vg, b.load(x, kF32)));
  return b.kernel;
}

LoopKernel transpose(int64_t n) {
  KernelBuilder b("transpose", n, n);
  const int32_t x = b.operand(kF32, {{1, n, 1}}, n), y = b.dense(kF32, true);
  b.store(y, b.load(x, kF32));
  return b.kernel;
}

LoopKernel reduce(LoopOp op, int64_t rows, int64_t cols) {
  KernelBuilder b(op == LoopOp::kReduceSum ? "reduce_sum" : "reduce_max", rows, cols, 2);
  const int32_t x = b.dense(kF32), y = b.per_row(kF32, true);
  const LoopValue v = b.reduce(op, b.load(x, kF32));
  b.stage(1).in_row().store(y, v);
  return b.kernel;
}

TEST(EmitSpeed, Report) {
  if (!jit_available()) GTEST_SKIP();
  const LoopKernel first = add(kF32, 4096);
  std::printf("first kernel, with loading LLVM: %.1f ms\n", 1e3 * seconds([&] { compile_kernels({&first, 1}); }));
  for (int64_t n : {1 << 12, 1 << 22}) {
    report(add(kF32, n));
    report(add(kBF16, n));
  }
  report(add(kF16, 4096));
  report(exp_only(kF32, 4096));
  report(exp_only(kF64, 4096));
  report(chain(kF32, 4096));
  report(chain(kF64, 4096));
  report(chain(kF32, 4099));
  report(adamw(4096));
  report(adamw(1 << 21));
  report(softmax(kF32, 64, 1024));
  report(softmax(kBF16, 64, 1024));
  report(layer_norm(kF32, 64, 768));
  report(layer_norm(kBF16, 64, 768));
  report(layer_norm(kF32, 64, 770));
  report(column_sums(1024, 768));
  report(reduce(LoopOp::kReduceSum, 16, 1024));
  report(reduce(LoopOp::kReduceMax, 16, 1024));
  report(transpose(256));

  // A module of several kernels costs less than its kernels alone.
  std::vector<LoopKernel> kernels{softmax(kF32, 64, 1024), layer_norm(kF32, 64, 768),
                                  column_sums(1024, 768),  adamw(4096),
                                  chain(kF32, 4096),       add(kF32, 4096)};
  double best = 1e9;
  for (int i = 0; i < 10; ++i) best = std::min(best, seconds([&] { compile_kernels(kernels); }));
  std::printf("%zu kernels in one module: %.2f ms\n", kernels.size(), best * 1e3);
}

}  // namespace
}  // namespace rondo::compile
