#include "rondo/runtime/cuda/product_kernel.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::cuda {
namespace {

// Arguments that the kernels take by value: sizes, and strides in elements.
// clang-format off
RONDO_TEXT_AND_CODE(kProductArgument,
struct ProductArgument {
  long long batch, m, n, k;
  long long a_batch, a_row, a_column;
  long long b_batch, b_row, b_column;
  long long c_batch, c_row;
  double alpha;
};
)
// clang-format on

// T: the operands' type. R: the type of the result, its bias and its addend.
constexpr const char* kProductText = R"cuda(
using C = typename RondoCompute<T>::Type;
constexpr int kTile = 16;

// bias, added: may be null. `added` may be the result: each thread reads an element before it writes it.
RONDO_DEVICE R finished(C sum, const R* bias, const R* added, long long at, long long column) {
  if (added != nullptr) sum = sum + widen(read(added + at));
  if (bias != nullptr) sum = sum + widen(read(bias + column));
  if (GELU != 0) sum = rondo_gelu(sum);
  return convert<R>(sum);
}

// A block for each tile of a matrix of the batch, or fewer blocks that take several tiles each.
extern "C" __global__ void __launch_bounds__(256) rondo_product(const T* a, const T* b, const R* bias, const R* added,
                                                                R* out, ProductArgument p, long long tiles) {
  __shared__ C left[kTile * kTile], right[kTile * kTile];
  const int row = static_cast<int>(threadIdx.x) / kTile, column = static_cast<int>(threadIdx.x) % kTile;
  const long long down = (p.m + kTile - 1) / kTile, across = (p.n + kTile - 1) / kTile;
  for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const long long batch = tile / across / down;
    const long long i = tile / across % down * kTile + row, j = tile % across * kTile + column;
    C sum = 0;
    for (long long first = 0; first < p.k; first += kTile) {
      const long long of_a = first + column, of_b = first + row;
      C x = 0, y = 0;
      if (i < p.m && of_a < p.k) x = widen(read(a + batch * p.a_batch + i * p.a_row + of_a * p.a_column));
      if (j < p.n && of_b < p.k) y = widen(read(b + batch * p.b_batch + of_b * p.b_row + j * p.b_column));
      __syncthreads();  // the last tiles have been read
      put(left[threadIdx.x], x);
      put(right[threadIdx.x], y);
      __syncthreads();
      for (int t = 0; t < kTile; ++t)
        sum = fma_of(get(left[row * kTile + t]), get(right[t * kTile + column]), sum);
    }
    const long long at = batch * p.c_batch + i * p.c_row + j;
    if (i < p.m && j < p.n) write(out + at, finished(sum * static_cast<C>(p.alpha), bias, added, at, j));
  }
}
// sums: dense.
extern "C" __global__ void rondo_product_finish(const C* sums, const R* bias, const R* added, R* out,
                                                ProductArgument p, long long elements) {
  for (long long e = first_index(); e < elements; e += index_step()) {
    const long long j = e % p.n, at = e / p.n / p.m * p.c_batch + e / p.n % p.m * p.c_row + j;
    write(out + at, finished(read(sums + e), bias, added, at, j));
  }
}
extern "C" __global__ void rondo_product_copy(const T* from, T* to, long long rows, long long columns,
                                              long long batch_stride, long long row_stride, long long column_stride,
                                              long long elements) {
  for (long long e = first_index(); e < elements; e += index_step())
    write(to + e, read(from + e / columns / rows * batch_stride + e / columns % rows * row_stride +
                       e % columns * column_stride));
}
)cuda";

ProductArgument argument(const MatmulCall& c, double alpha) {
  return {c.batch,   c.m,     c.n,        c.k,       c.a.batch, c.a.row, c.a.column,
          c.b.batch, c.b.row, c.b.column, c.c.batch, c.c.row,   alpha};
}
Kernel kernel(int device, DType operands, DType result, bool gelu, const char* name) {
  return kernel_of(device, product_source(), name,
                   {{"T", type_name(operands)}, {"R", type_name(result)}, {"GELU", gelu ? "1" : "0"}});
}
Kernel kernel(int device, const MatmulCall& call, const char* name) {
  const bool gelu = std::ranges::count(call.epilogues, Epilogue::kGeluTanh) > 0;
  return kernel(device, call.dtype, call.result_dtype(), gelu, name);
}
const void* added_of(const MatmulCall& call, const MatmulOperands& operands) {
  return call.epilogues[0] == Epilogue::kAdd ? operands.added[0] : nullptr;
}
const void* bias_of(const MatmulCall& call, const MatmulOperands& operands) {
  return call.bias ? operands.bias : nullptr;
}

}  // namespace

const Source& product_source() {
  static const auto* const text = new std::string(absl::StrCat(
      scalar_function("rondo_gelu", [](LoopValue x) { return scalar::gelu_tanh(x); }), kProductArgument, kProductText));
  static const Source source{"product", *text};
  return source;
}

void product_by_kernel(int device, const MatmulCall& call, const MatmulOperands& operands, double alpha) {
  constexpr int64_t kTile = 16;
  const long long tiles = call.batch * ((call.m + kTile - 1) / kTile) * ((call.n + kTile - 1) / kTile);
  launch_blocks(device, kernel(device, call, "rondo_product"), tiles, kThreads, operands.a, operands.b,
                bias_of(call, operands), added_of(call, operands), operands.c, argument(call, alpha), tiles);
}

void finish_product(int device, const MatmulCall& call, const void* sums, const MatmulOperands& operands) {
  const long long elements = call.batch * call.m * call.n;
  launch_threads(device, kernel(device, call, "rondo_product_finish"), elements, sums, bias_of(call, operands),
                 added_of(call, operands), operands.c, argument(call, 1), elements);
}

void copy_matrices(int device, DType dtype, const void* from, void* to, int64_t batch, int64_t rows, int64_t columns,
                   const MatrixStrides& strides) {
  const long long elements = (strides.batch == 0 ? 1 : batch) * rows * columns;
  launch_threads(device, kernel(device, dtype, dtype, false, "rondo_product_copy"), elements, from, to,
                 static_cast<long long>(rows), static_cast<long long>(columns), static_cast<long long>(strides.batch),
                 static_cast<long long>(strides.row), static_cast<long long>(strides.column), elements);
}

}  // namespace rondo::cuda
