// Rows of a table. Gradients are sorted by row, stably, and each row adds up its own in the order of the indices: no
// atomics, and the CPU's bits.
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/sort.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cuda {
namespace {

constexpr Source kRows = {"embedding", R"cuda(
extern "C" __global__ void rondo_embedding(WORD* out, const WORD* table, const long long* index, long long n,
                                           long long cols, long long rows, DeviceStatus* status, unsigned call) {
  for (long long i = first_index(); i < n * cols; i += index_step()) {
    const long long at = i / cols, column = i - at * cols, row = read(index + at);
    if (row < 0 || row >= rows) {
      if (column == 0) rondo_report(status, call, row, at);
      continue;
    }
    write(out + i, read(table + row * cols + column));
  }
}
)cuda"};

constexpr Source kAddRows = {"embedding_grad", R"cuda(
// A block for each sorted position; that of a row's first gradient adds up all of the row.
extern "C" __global__ void rondo_add_rows(T* table, const T* grad, const unsigned long long* keys,
                                          const long long* positions, long long n, long long cols) {
  using C = typename RondoCompute<T>::Type;
  for (long long first = blockIdx.x; first < n; first += gridDim.x) {
    const unsigned long long key = read(keys + first);
    if (key == ~0ull || (first > 0 && read(keys + first - 1) == key)) continue;
    T* const row = table + static_cast<long long>(key) * cols;
    for (long long column = threadIdx.x; column < cols; column += blockDim.x) {
      C sum = 0;
      for (long long i = first; i < n && read(keys + i) == key; ++i)
        sum = sum + widen(read(grad + read(positions + i) * cols + column));
      write(row + column, convert<T>(widen(read(row + column)) + widen(convert<T>(sum))));
    }
  }
}
)cuda"};

// Adds to each row of the table the sum of its gradients.
void add_rows(const KernelContext& context, const Tensor& grad, const Tensor& indices, Tensor& table) {
  const int64_t rows = table.sizes()[0], cols = table.sizes()[1], n = indices.numel();
  if (n == 0) return;
  const int device = table.device().index;
  const std::initializer_list<Define> types = {{"T", type_name(table.dtype())}};
  const Order order = sort_rows(indices, rows, check_indices(context, rows, /*at_position=*/true));
  launch_blocks(device, kernel_of(device, kAddRows, "rondo_add_rows", types), n, 128, address_of(table),
                address_of(grad), address_of(order.keys), address_of(order.positions), n, cols);
}

}  // namespace

void embedding_kernel(const KernelContext& context) {
  const Tensor weight = dense(context.in(0)), indices = dense(context.in(1));
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const int device = out.device().index;
  const int64_t rows = weight.sizes()[0], cols = weight.sizes()[1];
  const IndexCheck check = check_indices(context, rows, /*at_position=*/true);
  launch_threads(device, kernel_of(device, kRows, "rondo_embedding", {{"WORD", word_name(weight.dtype())}}),
                 out.numel(), address_of(out), address_of(weight), address_of(indices), indices.numel(), cols, rows,
                 check.status, check.call);
}

void embedding_grad_kernel(const KernelContext& context) {
  Tensor& out = context.out();
  const Device device = out.device();
  backend_of(device).fill(device.index, address_of(out), 0, static_cast<size_t>(out.nbytes()));
  add_rows(context, dense(context.in(0)), dense(context.in(1)), out);
}

void embedding_grad_onto_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  Tensor& out = context.out();
  if (address_of(out) != address_of(context.in(0))) out.copy_(context.in(0));
  add_rows(context, dense(context.in(1)), dense(context.in(2)), out);
}

}  // namespace rondo::cuda
