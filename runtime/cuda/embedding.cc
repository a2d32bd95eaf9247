// Embedding: takes rows of a table. In the backward, each row of the table adds up its own gradients in the order of
// the indices; if there are many indices, a stable sort by row comes first. So there are no atomics, and the bits are
// those of the CPU.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/sort.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"

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
using C = typename RondoCompute<T>::Type;
// A block for each sorted position; that of a row's first gradient adds up all of the row.
extern "C" __global__ void rondo_add_rows(T* table, const T* grad, const unsigned long long* keys,
                                          const long long* positions, long long n, long long cols) {
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

struct Or {
  static RONDO_DEVICE unsigned combine(unsigned a, unsigned b) { return a | b; }
};
// The same, unsorted: a block for each position marks where its row is among at most 8192 indices.
extern "C" __global__ void rondo_add_few_rows(T* table, const T* grad, const long long* index, long long n,
                                              long long cols, long long rows, DeviceStatus* status, unsigned call) {
  __shared__ unsigned marks[8192 / 32];
  for (long long block = blockIdx.x; block < n; block += gridDim.x) {
    const long long row = read(index + block);
    if (row < 0 || row >= rows) {
      if (threadIdx.x == 0) rondo_report(status, call, row, block);
      continue;
    }
    for (long long first = 0; first < n; first += blockDim.x) {
      const long long at = first + threadIdx.x;
      const bool here = at < n && read(index + at) == row;
      const unsigned word = warp_reduce<Or, 32>(here ? 1u << threadIdx.x % 32 : 0u);
      if (threadIdx.x % 32 == 0 && at < n) put(marks[at / 32], word);
    }
    __syncthreads();
    const long long own = block / 32;
    bool is_first = (get(marks[own]) & ((1u << block % 32) - 1u)) == 0u;
    for (long long word = 0; word < own; ++word) is_first = is_first && get(marks[word]) == 0u;
    for (long long column = threadIdx.x; column < cols && is_first; column += blockDim.x) {
      C sum = 0;
      for (long long word = own; word * 32 < n; ++word)
        for (unsigned rest = get(marks[word]); rest != 0u; rest &= rest - 1u)
          sum = sum + widen(read(grad + (word * 32 + __ffs(static_cast<int>(rest)) - 1) * cols + column));
      T* const to = table + row * cols + column;
      write(to, convert<T>(widen(read(to)) + widen(convert<T>(sum))));
    }
    __syncthreads();  // the marks have been read
  }
}
)cuda"};

// Adds to each row of the table the sum of its gradients.
void add_rows(const KernelContext& context, const Tensor& grad, const Tensor& indices, Tensor& table) {
  const int64_t rows = table.sizes()[0], cols = table.sizes()[1], n = indices.numel();
  if (n == 0) return;
  const int device = table.device().index;
  const auto kernel = [&](const char* name) {
    return kernel_of(device, kAddRows, name, {{"T", type_name(table.dtype())}});
  };
  const IndexCheck check = check_indices(context, rows, /*at_position=*/true);
  // If there are few indices, blocks that search all of them take less time than sorting, and fewer launches.
  constexpr int64_t kFewIndices = 8192;
  if (n <= kFewIndices)
    return launch_blocks(device, kernel("rondo_add_few_rows"), n, kThreads, address_of(table), address_of(grad),
                         address_of(indices), n, cols, rows, check.status, check.call);
  const Order order = sort_rows(indices, rows, check);
  launch_blocks(device, kernel("rondo_add_rows"), n, 128, address_of(table), address_of(grad), address_of(order.keys),
                address_of(order.positions), n, cols);
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
