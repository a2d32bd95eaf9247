// Reductions of any dtype, in the order of ops/reduction_order.h, so the bits are those of the CPU. If compile/ is
// linked, reductions of floats run as its generated kernels, in an order of their own that suits a GPU.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::cuda {
namespace {

// The text's defines: the types IN, ACC and OUT; ELEMENT(x): the number that is combined; IDENTITY; COMBINE(a, b).
constexpr Source kReduction = {"reduction", R"cuda(
// Note [Row order]: sixteen threads are a row's lanes. Row r has `cols` elements from r * cols on, but none beyond `n`.
extern "C" __global__ void rondo_reduce_rows(const IN* in, OUT* out, long long rows, long long cols, long long n) {
  const int lane = static_cast<int>(threadIdx.x % 16);
  for (long long first = blockIdx.x * 16ll; first < rows; first += gridDim.x * 16ll) {
    const long long row = first + threadIdx.x / 16, begin = row * cols;
    const long long end = begin + cols < n ? begin + cols : n;
    ACC total = IDENTITY;
    for (long long block = begin; block < end; block += ROW_BLOCK) {
      const long long last = block + ROW_BLOCK < end ? block + ROW_BLOCK : end;
      ACC part = IDENTITY;
      for (long long i = block + lane; i < last; i += 16) {
        const ACC value = static_cast<ACC>(ELEMENT(widen(read(in + i))));
        part = COMBINE(part, value);
      }
      total = COMBINE(total, part);
    }
#pragma unroll
    for (int width = 8; width > 0; width /= 2) {
      const ACC other = __shfl_down_sync(0xFFFFFFFFu, total, width, 16);
      total = COMBINE(total, other);
    }
    if (row < rows && lane == 0) write(out + row, convert<OUT>(total));
  }
}
// Note [Column order]. `partial`: ACC; where there is one chunk, it is the result, of type OUT.
extern "C" __global__ void rondo_reduce_columns(const IN* in, void* partial, long long rows, long long cols,
                                                long long chunk, long long chunks) {
  for (long long i = first_index(); i < chunks * cols; i += index_step()) {
    const long long k = i / cols, column = i - k * cols, end = (k + 1) * chunk < rows ? (k + 1) * chunk : rows;
    ACC total = IDENTITY;
    for (long long row = k * chunk; row < end; ++row) {
      const ACC value = static_cast<ACC>(ELEMENT(widen(read(in + row * cols + column))));
      total = COMBINE(total, value);
    }
    if (chunks == 1) write(static_cast<OUT*>(partial) + i, convert<OUT>(total));
    else write(static_cast<ACC*>(partial) + i, total);
  }
}
extern "C" __global__ void rondo_combine_columns(const ACC* partial, OUT* out, long long cols, long long chunks) {
  for (long long column = first_index(); column < cols; column += index_step()) {
    ACC total = read(partial + column);
    for (long long k = 1; k < chunks; ++k) {
      const ACC other = read(partial + k * cols + column);
      total = COMBINE(total, other);
    }
    write(out + column, convert<OUT>(total));
  }
}
)cuda"};

enum class Combine { kSum, kMax, kMin, kAny, kAll };

class Reduction {
 public:
  Reduction(Combine combine, const Tensor& x)
      : combine_(combine),
        accumulator_(asks_truth()             ? kI32
                     : is_floating(x.dtype()) ? compute_dtype(x.dtype())
                                              : kI64),
        device_(x.device()) {}

  // Reduces rows: x [rows, cols] -> out [rows]. x has `n` elements: the last row may be shorter than the others.
  void rows(const Tensor& x, const Tensor& out, int64_t rows, int64_t cols, int64_t n) const {
    launch_blocks(device_.index, kernel("rondo_reduce_rows", x.dtype(), out.dtype()), (rows + 15) / 16, kThreads,
                  address_of(x), address_of(out), rows, cols, n);
  }
  // Reduces columns: x [rows, cols] -> out [cols].
  void columns(const Tensor& x, const Tensor& out, int64_t rows, int64_t cols) const {
    const int64_t chunk = column_chunk_rows(rows), chunks = std::max<int64_t>(1, (rows + chunk - 1) / chunk);
    const Tensor partial = chunks == 1 ? out : Tensor::empty({chunks, cols}, {accumulator_, device_});
    launch_threads(device_.index, kernel("rondo_reduce_columns", x.dtype(), out.dtype()), chunks * cols, address_of(x),
                   address_of(partial), rows, cols, chunk, chunks);
    if (chunks == 1) return;
    launch_threads(device_.index, kernel("rondo_combine_columns", x.dtype(), out.dtype()), cols, address_of(partial),
                   address_of(out), cols, chunks);
  }
  // Reduces x, which is dense and has shape `sizes`, to one element: Note [Full order].
  void full(const Tensor& x, const Tensor& out, const Dims& sizes) const {
    const int64_t n = sizes.numel(), row = full_row(n, sizes.back());
    if (row == 0) return all(x, out, n);
    const Tensor partial = Tensor::empty({n / row}, {accumulator_, device_});
    rows(x, partial, n / row, row, n);
    all(partial, out, n / row);
  }
  // Reduces x [n] to one element, in chunks of kFullChunk.
  void all(const Tensor& x, const Tensor& out, int64_t n) const {
    const int64_t chunks = std::max<int64_t>(1, (n + kFullChunk - 1) / kFullChunk);
    if (chunks == 1) return rows(x, out, 1, n, n);
    const Tensor partial = Tensor::empty({chunks}, {accumulator_, device_});
    rows(x, partial, chunks, kFullChunk, n);
    rows(partial, out, 1, chunks, chunks);
  }
  // Reduces the dimensions in `mask` of x, which is dense and has shape `sizes`: Note [Runs]. Intermediate results
  // between two runs have the accumulator's dtype.
  void runs(const Tensor& x, const Tensor& out, const Dims& sizes, int64_t mask) const {
    const ops::ReducedRun run = ops::last_run(sizes, mask);
    const int64_t kept = run.outer * run.inner;
    const Tensor result = run.is_all ? out : Tensor::empty({kept}, {accumulator_, device_});
    if (!run.by_columns) {
      rows(x, result, kept, run.reduced, kept * run.reduced);
    } else if (run.outer == 1) {
      columns(x, result, run.reduced, run.inner);
    } else {  // the order of a column's sum does not depend on the column's position
      const Tensor blocks = x.view({run.outer, run.reduced, run.inner});
      columns(blocks.permute({1, 0, 2}).contiguous(), result, run.reduced, kept);
    }
    if (!run.is_all) runs(result, out, ops::kept_sizes(sizes, run.mask), mask & ~run.mask);
  }

 private:
  Kernel kernel(const char* name, DType in, DType out) const {
    return kernel_of(device_.index, kReduction, name,
                     {{"IN", type_name(in)},
                      {"ACC", type_name(accumulator_)},
                      {"OUT", type_name(out)},
                      {"ROW_BLOCK", std::to_string(kRowBlock)},
                      {"ELEMENT(x)", asks_truth() ? "((x) != 0)" : "(x)"},
                      {"IDENTITY", identity()},
                      {"COMBINE(a, b)", combination()}});
  }
  bool asks_truth() const { return combine_ == Combine::kAny || combine_ == Combine::kAll; }
  const char* identity() const {
    if (combine_ == Combine::kSum || combine_ == Combine::kAny) return "0";
    if (combine_ == Combine::kAll) return "1";
    const bool max = combine_ == Combine::kMax;
    if (!is_floating(accumulator_)) return max ? "(-9223372036854775807ll - 1)" : "9223372036854775807ll";
    return max ? "static_cast<ACC>(__longlong_as_double(0xFFF0000000000000ull))"
               : "static_cast<ACC>(__longlong_as_double(0x7FF0000000000000ull))";
  }
  const char* combination() const {
    switch (combine_) {
      case Combine::kSum: return "((a) + (b))";
      case Combine::kAny: return "((a) | (b))";
      case Combine::kAll: return "((a) & (b))";
      case Combine::kMax: return "((a) != (a) ? (a) : ((b) < (a) ? (a) : (b)))";
      default: return "((a) != (a) ? (a) : ((a) < (b) ? (a) : (b)))";
    }
  }

  Combine combine_;
  DType accumulator_;
  Device device_;
};

void reduce(const KernelContext& context, Combine combine) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor& out = context.out();
  const int64_t mask = context.attrs.ints[0];
  if (out.numel() == 0) return;
  const Tensor x = context.in(0).contiguous();
  const Reduction reduction(combine, x);
  if (is_full_reduction(mask, context.attrs.ints[1] != 0, x.rank())) reduction.full(x, out, x.sizes());
  else reduction.runs(x, out, x.sizes(), mask);
}

}  // namespace

void sum_kernel(const KernelContext& context) { reduce(context, Combine::kSum); }
void max_kernel(const KernelContext& context) { reduce(context, Combine::kMax); }
void min_kernel(const KernelContext& context) { reduce(context, Combine::kMin); }
void any_kernel(const KernelContext& context) { reduce(context, Combine::kAny); }
void all_kernel(const KernelContext& context) { reduce(context, Combine::kAll); }

}  // namespace rondo::cuda
