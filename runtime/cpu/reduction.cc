#include <vector>

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {
namespace {

struct Sum {
  template <class C> static C identity() { return C(0); }
  template <class C> static C combine(C a, C b) { return a + b; }
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

// x [n] -> one element: Note [Full order].
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

// x [rows, cols] -> out [rows]
template <class Op, class C, class T, class Out>
void reduce_columns_of_rows(const T* x, Out* out, int64_t rows, int64_t cols) {
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

// x [rows, cols] -> out [cols]: Note [Column order].
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

template <class Op> void reduce(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  const int64_t mask = context.attrs.ints[0];
  const ops::ReducedMatrix matrix = ops::reduced_matrix(context.in(0), mask);
  const int64_t kept = context.out().numel();
  const bool full = is_full_reduction(mask, context.attrs.ints[1] != 0, context.in(0).rank());
  const auto reduce_as = [&]<class C, class T, class Out>(C, T, Out) {
    const T* in = reinterpret_cast<const T*>(matrix.x.impl()->data());
    Out* out = reinterpret_cast<Out*>(context.out().impl()->data());
    if (full) reduce_all<Op, C>(in, out, matrix.reduced);
    else if (matrix.reduces_rows) reduce_rows_of_columns<Op, C>(in, out, matrix.reduced, kept);
    else reduce_columns_of_rows<Op, C>(in, out, kept, matrix.reduced);
  };
  visit_dtype(matrix.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<Op, Sum> && std::is_integral_v<T>) {
      reduce_as(int64_t{}, T{}, int64_t{});
    } else if constexpr (std::is_same_v<T, bool>) {
      reduce_as(uint8_t{}, uint8_t{}, uint8_t{});  // true is 1
    } else if constexpr (std::is_same_v<Op, Sum> && !std::is_same_v<T, ComputeType<T>>) {
      if (context.out().dtype() == kF32) reduce_as(float{}, T{}, float{});
      else reduce_as(float{}, T{}, T{});
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
