#include <array>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/column_reduce.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/wrapping.h"

namespace rondo::cpu {
namespace {

struct Sum {
  template <class C> static C identity() { return C(0); }
  template <class C> static C combine(C a, C b) { return ops::wrapping_add(a, b); }
};
struct Max {
  template <class C> static C identity() {
    if constexpr (std::is_floating_point_v<C>) return -std::numeric_limits<C>::infinity();
    else return std::numeric_limits<C>::lowest();
  }
  template <class C> static C combine(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) return scalar::maximum(a, b);
    else return a < b ? b : a;
  }
};

struct Min {
  template <class C> static C identity() {
    if constexpr (std::is_floating_point_v<C>) return std::numeric_limits<C>::infinity();
    else return std::numeric_limits<C>::max();
  }
  template <class C> static C combine(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) return scalar::minimum(a, b);
    else return b < a ? b : a;
  }
};

// Reduces x [n] to one element, in chunks: Note [Full order].
template <class Op, class C, class T, class Out> void reduce_all(const T* x, Out* out, int64_t n) {
  const int64_t chunks = std::max<int64_t>(1, (n + kFullChunk - 1) / kFullChunk);
  std::vector<C> partial(static_cast<size_t>(chunks));
  const auto combine = [](C a, C b) { return Op::template combine<C>(a, b); };
  parallel_for(chunks, kElementwiseGrain / kFullChunk, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const T* piece = x + k * kFullChunk;
      partial[static_cast<size_t>(k)] = reduce_row<C>(
          std::min(kFullChunk, n - k * kFullChunk), Op::template identity<C>(),
          [piece](int64_t i) { return static_cast<C>(piece[i]); }, combine);
    }
  });
  *out = static_cast<Out>(chunks == 1 ? partial[0]
                                      : reduce_row<C>(
                                            chunks, Op::template identity<C>(),
                                            [&](int64_t i) { return partial[static_cast<size_t>(i)]; }, combine));
}

// Reduces x [cols] to one element, in the order of Note [Row order]. Threads take blocks of the row.
template <class Op, class C, class T> C reduce_long_row(const T* x, int64_t cols) {
  const int64_t blocks = (cols + kRowBlock - 1) / kRowBlock;
  const auto combine = [](C a, C b) { return Op::template combine<C>(a, b); };
  std::vector<std::array<C, kLanes>> lanes(static_cast<size_t>(blocks));
  parallel_for(blocks, kElementwiseGrain / kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      C part[kLanes];
      std::fill_n(part, kLanes, Op::template identity<C>());
      const T* block = x + k * kRowBlock;
      const int64_t n = std::min(kRowBlock, cols - k * kRowBlock);
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes)
        for (int l = 0; l < kLanes; ++l) part[l] = combine(part[l], static_cast<C>(block[i + l]));
      for (int l = 0; i < n; ++i, ++l) part[l] = combine(part[l], static_cast<C>(block[i]));
      std::copy_n(part, kLanes, lanes[static_cast<size_t>(k)].begin());
    }
  });
  C totals[kLanes];
  std::fill_n(totals, kLanes, Op::template identity<C>());
  for (const std::array<C, kLanes>& part : lanes)
    for (int l = 0; l < kLanes; ++l) totals[l] = combine(totals[l], part[static_cast<size_t>(l)]);
  return combine_lanes(totals, combine);
}

// Reduces the columns of each row of x [rows, cols] to out [rows].
template <class Op, class C, class T, class Out>
void reduce_columns_of_rows(const T* x, Out* out, int64_t rows, int64_t cols) {
  if (rows == 1 && cols > kElementwiseGrain) {
    *out = static_cast<Out>(reduce_long_row<Op, C>(x, cols));
    return;
  }
  parallel_for(rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(cols, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   const T* row = x + r * cols;
                   out[r] = static_cast<Out>(reduce_row<C>(
                       cols, Op::template identity<C>(), [row](int64_t i) { return static_cast<C>(row[i]); },
                       [](C a, C b) { return Op::template combine<C>(a, b); }));
                 }
               });
}

// With at least this many columns, there are enough blocks of columns for all threads.
constexpr int64_t kManyColumns = 1 << 12;

// Reduces the rows of x [rows, cols] to out [cols]: Note [Column order]. Threads take chunks of rows.
template <class Op, class C, class T, class Out>
void reduce_rows_of_columns(const T* x, Out* out, int64_t rows, int64_t cols) {
  const int64_t chunk = column_chunk_rows(rows), chunks = (rows + chunk - 1) / chunk;
  std::vector<C> partial(static_cast<size_t>(std::max<int64_t>(chunks, 1) * cols), Op::template identity<C>());
  parallel_for(chunks, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(chunk * cols, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k) {
                   C* sums = partial.data() + k * cols;
                   for (int64_t r = k * chunk; r < std::min(rows, (k + 1) * chunk); ++r)
                     for (int64_t c = 0; c < cols; ++c)
                       sums[c] = Op::template combine<C>(sums[c], static_cast<C>(x[r * cols + c]));
                 }
               });
  for (int64_t k = 1; k < chunks; ++k)
    for (int64_t c = 0; c < cols; ++c) partial[c] = Op::template combine<C>(partial[c], partial[k * cols + c]);
  for (int64_t c = 0; c < cols; ++c) out[c] = static_cast<Out>(partial[c]);
}

// Reduces the rows of each matrix of x [outer, rows, cols] to out [outer, cols]: Note [Column order]. Threads take
// blocks of columns.
template <class Op, class C, class T, class Out>
void reduce_blocks_of_columns(const T* x, Out* out, int64_t outer, int64_t rows, int64_t cols) {
  const int64_t blocks = (cols + kColumnBlock - 1) / kColumnBlock;
  parallel_for(outer * blocks, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(rows * kColumnBlock, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   const int64_t o = block / blocks, first = block % blocks * kColumnBlock,
                                 width = std::min(kColumnBlock, cols - first);
                   const T* from = x + o * rows * cols + first;
                   C totals[kColumnBlock];
                   reduce_columns<C>(
                       rows, width, Op::template identity<C>(),
                       [=](int64_t r, int64_t c) { return static_cast<C>(from[r * cols + c]); },
                       [](C a, C b) { return Op::template combine<C>(a, b); }, totals);
                   for (int64_t c = 0; c < width; ++c) out[o * cols + first + c] = static_cast<Out>(totals[c]);
                 }
               });
}

// Reduces a dense x of `sizes` to `out`, run by run: Note [Runs].
template <class Op, class C, class T, class Out>
void reduce_runs(const T* x, Out* out, const Dims& sizes, int64_t mask) {
  const ops::ReducedRun run = ops::last_run(sizes, mask);
  const auto reduce_run = [&](auto* to) {
    if (!run.by_columns) reduce_columns_of_rows<Op, C>(x, to, run.outer, run.reduced);
    else if (run.outer == 1 && run.inner < kManyColumns) reduce_rows_of_columns<Op, C>(x, to, run.reduced, run.inner);
    else reduce_blocks_of_columns<Op, C>(x, to, run.outer, run.reduced, run.inner);
  };
  if (run.is_all) return reduce_run(out);
  std::vector<C> accumulators(static_cast<size_t>(run.outer * run.inner));
  reduce_run(accumulators.data());
  reduce_runs<Op, C>(static_cast<const C*>(accumulators.data()), out, ops::kept_sizes(sizes, run.mask),
                     mask & ~run.mask);
}

// Reduces a dense x of `sizes` to one element: Note [Full order].
template <class Op, class C, class T, class Out> void reduce_full(const T* x, Out* out, const Dims& sizes) {
  const int64_t n = sizes.numel(), row = full_row(n, sizes.back());
  if (row == 0) return reduce_all<Op, C>(x, out, n);
  std::vector<C> rows(static_cast<size_t>(n / row));
  reduce_columns_of_rows<Op, C>(x, rows.data(), n / row, row);
  reduce_all<Op, C>(static_cast<const C*>(rows.data()), out, n / row);
}

template <class Op> void reduce(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  const int64_t mask = context.attrs.ints[0];
  const Tensor x = context.in(0).contiguous();
  if (context.out().numel() == 0) return;
  const bool full = is_full_reduction(mask, context.attrs.ints[1] != 0, x.rank());
  const auto reduce_as = [&]<class C, class T, class Out>(C, T, Out) {
    const T* in = reinterpret_cast<const T*>(x.impl()->data());
    Out* out = reinterpret_cast<Out*>(context.out().impl()->data());
    if (full) reduce_full<Op, C>(in, out, x.sizes());
    else reduce_runs<Op, C>(in, out, x.sizes(), mask);
  };
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<Op, Sum> && std::is_integral_v<T>) {
      reduce_as(int64_t{}, T{}, int64_t{});
    } else if constexpr (std::is_same_v<T, bool>) {
      reduce_as(uint8_t{}, uint8_t{}, uint8_t{});  // true is 1
    } else if constexpr (std::is_same_v<Op, Sum>) {
      visit_floating(context.out().dtype(),
                     [&](auto out) { reduce_as(ComputeType<T>{}, T{}, typename decltype(out)::type{}); });
    } else {
      reduce_as(ComputeType<T>{}, T{}, T{});
    }
  });
}

}  // namespace

void sum_kernel(const KernelContext& context) { reduce<Sum>(context); }
void max_kernel(const KernelContext& context) { reduce<Max>(context); }
void min_kernel(const KernelContext& context) { reduce<Min>(context); }

}  // namespace rondo::cpu
