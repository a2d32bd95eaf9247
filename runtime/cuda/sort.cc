// Sorts along one dimension. Elements are first mapped to unsigned words in the same order (NaN is the largest, and the
// two zeros are equal), so the sort itself knows no dtypes.
#include "rondo/runtime/cuda/sort.h"

#include <algorithm>
#include <utility>

#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/reduction_def.h"

namespace rondo::cuda {
namespace {

constexpr Source kKeys = {"keys", R"cuda(
RONDO_DEVICE unsigned long long key_of(double x) {
  const unsigned long long bits = x == 0.0 ? 0ull : bits_of(x);
  if (x != x) return ~0ull;
  return (bits >> 63) != 0ull ? ~bits : bits | 0x8000000000000000ull;
}
RONDO_DEVICE unsigned long long key_of(float x) { return key_of(static_cast<double>(x)); }
RONDO_DEVICE unsigned long long key_of(long long x) {
  return static_cast<unsigned long long>(x) ^ 0x8000000000000000ull;
}
RONDO_DEVICE unsigned long long key_of(int x) { return key_of(static_cast<long long>(x)); }
RONDO_DEVICE unsigned long long key_of(unsigned char x) { return key_of(static_cast<long long>(x)); }
RONDO_DEVICE unsigned long long key_of(bool x) { return key_of(static_cast<long long>(x)); }

// mode 0: the largest key is the largest element; 1: the smallest one; 2: the smallest one, but NaN stays the largest.
extern "C" __global__ void rondo_keys(const IN* in, unsigned long long* keys, RondoLayout layout, long long mode) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[1];
    offsets_of(layout, i, at);
    const auto x = widen(read(in + at[0]));
    const unsigned long long key = key_of(x);
    write(keys + i, mode == 0 || (mode == 2 && x != x) ? key : ~key);
  }
}
)cuda"};

constexpr Source kSort = {"sort", R"cuda(
// The keys that are sorted: words, or indices of rows. Indices out of range come last.
struct Words {
  const unsigned long long* words;
  RONDO_DEVICE unsigned long long at(long long i) const { return read(words + i); }
};
struct Rows {
  const long long* index;
  long long rows;
  RONDO_DEVICE unsigned long long at(long long i) const {
    const long long row = read(index + i);
    return row < 0 || row >= rows ? ~0ull : static_cast<unsigned long long>(row);
  }
};
// Sorts runs of `run` neighbours of a line, a multiple of 256: each thread counts what of its run comes before its own
// element. A line has `parts` blocks; this is block `b` of all lines.
template <class Keys>
RONDO_DEVICE void sort_run(const Keys& keys, unsigned long long (&tile)[256], unsigned long long* sorted,
                           long long* positions, long long length, long long parts, long long run, long long b) {
  const int t = static_cast<int>(threadIdx.x);
  const long long line = b / parts * length, at = b % parts * 256 + t, begin = at / run * run;
  const long long end = begin + run < length ? begin + run : length;
  const unsigned long long mine = at < length ? keys.at(line + at) : 0ull;
  long long before = 0;
  for (long long from = begin; from < end; from += 256) {
    if (from + t < end) put(tile[t], keys.at(line + from + t));
    __syncthreads();
    const int exist = end - from < 256 ? static_cast<int>(end - from) : 256;
    for (int j = 0; j < exist && at < length; ++j) {
      const unsigned long long other = get(tile[j]);
      before += other < mine || (other == mine && from + j < at) ? 1 : 0;
    }
    __syncthreads();
  }
  if (at >= length) return;
  write(sorted + line + begin + before, mine);
  write(positions + line + begin + before, at);
}
extern "C" __global__ void rondo_sort_runs(const unsigned long long* keys, unsigned long long* sorted,
                                           long long* positions, long long lines, long long length, long long parts,
                                           long long run) {
  __shared__ unsigned long long tile[256];
  for (long long b = blockIdx.x; b < lines * parts; b += gridDim.x)
    sort_run(Words{keys}, tile, sorted, positions, length, parts, run, b);
}
extern "C" __global__ void rondo_sort_rows(const long long* index, unsigned long long* sorted, long long* positions,
                                           long long n, long long parts, long long run, long long rows,
                                           DeviceStatus* status, unsigned call) {
  __shared__ unsigned long long tile[256];
  for (long long b = blockIdx.x; b < parts; b += gridDim.x) {
    const long long at = b * 256 + threadIdx.x;
    if (at < n) {
      const long long row = read(index + at);
      if (row < 0 || row >= rows) rondo_report(status, call, row, at);
    }
    sort_run(Rows{index, rows}, tile, sorted, positions, n, parts, run, b);
  }
}
// Pairs of sorted runs of `width` become one: an element stands behind those of its own run and of the other run that
// come before it. Of equal ones, those of the left run do.
extern "C" __global__ void rondo_merge(const unsigned long long* keys, const long long* positions,
                                       unsigned long long* merged, long long* merged_positions, long long lines,
                                       long long length, long long width) {
  for (long long i = first_index(); i < lines * length; i += index_step()) {
    const long long line = i / length, at = i - line * length, left = at / (2 * width) * (2 * width);
    const long long middle = left + width < length ? left + width : length;
    const long long end = middle + width < length ? middle + width : length;
    const bool is_right = at >= middle;
    const unsigned long long mine = read(keys + i);
    const long long begin = is_right ? left : middle;
    long long low = begin, high = is_right ? middle : end;
    while (low < high) {
      const long long half = low + (high - low) / 2;
      const unsigned long long other = read(keys + line * length + half);
      if (is_right ? other <= mine : other < mine) low = half + 1;
      else high = half;
    }
    const long long to = line * length + left + (at - (is_right ? middle : left)) + (low - begin);
    write(merged + to, mine);
    write(merged_positions + to, read(positions + i));
  }
}
// The first `taken` positions of each line.
extern "C" __global__ void rondo_write_order(const long long* positions, long long* out, RondoLayout layout,
                                             long long length, long long taken) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[1];
    offsets_of(layout, i, at);
    write(out + at[0], read(positions + i / taken * length + i % taken));
  }
}
// The place of the largest key of each line, the first one of equal ones. A block for each line.
extern "C" __global__ void rondo_best(const unsigned long long* keys, long long* out, long long lines,
                                      long long length) {
  __shared__ unsigned long long best_key[128];
  __shared__ long long best_at[128];
  const int t = static_cast<int>(threadIdx.x);
  for (long long line = blockIdx.x; line < lines; line += gridDim.x) {
    unsigned long long key = 0ull;
    long long at = length;
    for (long long i = t; i < length; i += 128) {
      const unsigned long long other = read(keys + line * length + i);
      if (at == length || other > key) {
        key = other;
        at = i;
      }
    }
    put(best_key[t], key);
    put(best_at[t], at);
    for (int width = 64; width > 0; width /= 2) {
      __syncthreads();
      if (t < width) {
        const unsigned long long mine = get(best_key[t]), other = get(best_key[t + width]);
        const long long my_at = get(best_at[t]), other_at = get(best_at[t + width]);
        if (other_at < length && (other > mine || (other == mine && other_at < my_at))) {
          put(best_key[t], other);
          put(best_at[t], other_at);
        }
      }
    }
    if (t == 0) write(out + line, get(best_at[0]));
    __syncthreads();
  }
}
)cuda"};

enum Mode : long long { kLargestLast = 0, kSmallestLast = 1, kSmallestLastButNaN = 2 };

int64_t length_of(const Tensor& x, int dim) { return x.rank() == 0 ? 1 : x.sizes()[dim]; }

// Returns the layout of a tensor's elements in lines along `dim`.
RondoLayout lines_of(const Tensor& x, int dim) {
  Dims sizes, strides;
  for (int d = 0; d < x.rank(); ++d)
    if (d != dim) {
      sizes.push_back(x.sizes()[d]);
      strides.push_back(x.strides()[d]);
    }
  if (x.rank() > 0) {
    sizes.push_back(x.sizes()[dim]);
    strides.push_back(x.strides()[dim]);
  }
  return layout_of(IterationSpace<1>(sizes, std::array<Dims, 1>{strides}));
}

Tensor words(int64_t n, Device device) { return Tensor::empty({n}, {kI64, device}); }

// Returns the keys of x's elements, [lines, length].
Tensor keys_of(const Tensor& x, int dim, Mode mode) {
  const Tensor keys = words(x.numel(), x.device());
  const int device = x.device().index;
  launch_threads(device, kernel_of(device, kKeys, "rondo_keys", {{"IN", type_name(x.dtype())}}), x.numel(),
                 address_of(x), address_of(keys), lines_of(x, dim), static_cast<long long>(mode));
  return keys;
}

void write_order(const Tensor& x, Tensor& out, int dim, bool descending) {
  if (out.numel() == 0) return;
  const int64_t length = length_of(x, dim), taken = length_of(out, dim);
  const Order order = sort_keys(keys_of(x, dim, descending ? kSmallestLast : kLargestLast), x.numel() / length, length);
  const int device = x.device().index;
  launch_threads(device, kernel_of(device, kSort, "rondo_write_order"), out.numel(), address_of(order.positions),
                 address_of(out), lines_of(out, dim), length, taken);
}

}  // namespace

namespace {

// Long runs take more work, but fewer merges. With few elements, launches cost the most, so runs are long.
constexpr int64_t kBlock = 256, kLongest = 8192, kFew = 1 << 16;
int64_t parts_of(int64_t length) { return (length + kBlock - 1) / kBlock; }
int64_t run_of(int64_t lines, int64_t length) {
  return lines * length <= kFew ? std::min(parts_of(length) * kBlock, kLongest) : kBlock;
}

Order merge(Order order, int64_t lines, int64_t length) {
  const Device device = order.keys.device();
  int64_t width = run_of(lines, length);
  if (length <= width) return order;
  Order other{words(order.keys.numel(), device), words(order.keys.numel(), device)};
  const Kernel merge = kernel_of(device.index, kSort, "rondo_merge");
  for (; width < length; width *= 2) {
    launch_threads(device.index, merge, lines * length, address_of(order.keys), address_of(order.positions),
                   address_of(other.keys), address_of(other.positions), lines, length, width);
    std::swap(order, other);
  }
  return order;
}

}  // namespace

Order sort_keys(const Tensor& keys, int64_t lines, int64_t length) {
  const Device device = keys.device();
  Order order{words(keys.numel(), device), words(keys.numel(), device)};
  if (keys.numel() == 0) return order;
  launch_blocks(device.index, kernel_of(device.index, kSort, "rondo_sort_runs"), lines * parts_of(length), kBlock,
                address_of(keys), address_of(order.keys), address_of(order.positions), lines, length, parts_of(length),
                run_of(lines, length));
  return merge(std::move(order), lines, length);
}

Order sort_rows(const Tensor& index, int64_t rows, const IndexCheck& check) {
  const Device device = index.device();
  const int64_t n = index.numel();
  Order order{words(n, device), words(n, device)};
  if (n == 0) return order;
  launch_blocks(device.index, kernel_of(device.index, kSort, "rondo_sort_rows"), parts_of(n), kBlock, address_of(index),
                address_of(order.keys), address_of(order.positions), n, parts_of(n), run_of(1, n), rows, check.status,
                check.call);
  return merge(std::move(order), 1, n);
}

void argmax_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &out = context.out();
  if (out.numel() == 0) return;
  const int dim = ops::reduced_dim(context.attrs.ints[0]);
  const Tensor keys = keys_of(x, dim, context.attrs.ints[2] != 0 ? kSmallestLastButNaN : kLargestLast);
  const int device = x.device().index;
  launch_blocks(device, kernel_of(device, kSort, "rondo_best"), out.numel(), 128, address_of(keys), address_of(out),
                out.numel(), length_of(x, dim));
}

void argsort_kernel(const KernelContext& context) {
  write_order(context.in(0), context.out(), static_cast<int>(context.attrs.ints[0]), context.attrs.ints[1] != 0);
}

void topk_kernel(const KernelContext& context) {
  write_order(context.in(0), context.out(), static_cast<int>(context.attrs.ints[1]), context.attrs.ints[2] != 0);
}

}  // namespace rondo::cuda
