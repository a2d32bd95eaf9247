// Kernels that read or write elements by an index tensor along one dimension.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/lines.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_sums.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/wrapping.h"

namespace rondo::cpu {
namespace {

// Returns the strides of operand `t` for positions in an index tensor of `sizes`, which may be smaller than `t` in each
// dimension. They are 0 if `t` is a scalar.
Dims strides_within(const Tensor& t, const Dims& sizes) {
  return t.rank() == 0 ? Dims::filled(sizes.rank(), 0) : t.strides();
}

int dim_of(const KernelContext& context) { return static_cast<int>(context.attrs.ints[0]); }
int64_t length_of(const Dims& sizes, int dim) { return sizes.empty() ? 1 : sizes[dim]; }

// Calls fn(T{}) with an unsigned integer of the dtype's width. Used by kernels that only copy elements.
template <class Fn> void for_width(DType dtype, Fn fn) {
  switch (size_of(dtype)) {
    case 1: return fn(uint8_t{});
    case 2: return fn(uint16_t{});
    case 4: return fn(uint32_t{});
    default: return fn(uint64_t{});
  }
}

}  // namespace

void gather_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &index = context.in(1), &out = context.out();
  const int dim = dim_of(context);
  const int64_t size = length_of(x.sizes(), dim), length = length_of(index.sizes(), dim);
  BadIndex bad(size);
  for_width(x.dtype(), [&]<class T>(T) {
    const T* from = pointer<T>(x);
    const int64_t* at = pointer<int64_t>(index);
    T* to = pointer<T>(out);
    for_each_line<3>(index.sizes(), dim, {out.strides(), index.strides(), strides_within(x, index.sizes())},
                     [&](const auto& o, const auto& step) {
                       for (int64_t i = 0; i < length; ++i) {
                         const int64_t position = o[1] + i * step[1], k = at[position];
                         if (bad.is(k, position)) continue;
                         to[o[0] + i * step[0]] = from[o[2] + k * step[2]];
                       }
                     });
  });
  bad.check(context);
}

void check_indices_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const int64_t size = context.attrs.ints[0];
  *reinterpret_cast<bool*>(context.out().impl()->data()) = true;
  // Drops broadcast dimensions, so that each index is checked once.
  Tensor index = context.in(0);
  for (int d = 0; d < index.rank(); ++d)
    if (index.strides()[d] == 0 && index.sizes()[d] > 1) index = index.slice(d, {0, 1});
  index = index.contiguous();
  const int64_t* at = pointer<int64_t>(index);
  std::atomic<bool> bad = false;
  parallel_for(index.numel(), kElementwiseGrain, [&](int64_t begin, int64_t end) {
    uint64_t largest = 0;  // negative indices are large as unsigned numbers
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, static_cast<uint64_t>(at[i]));
    if (begin < end && largest >= static_cast<uint64_t>(size)) bad.store(true, std::memory_order_relaxed);
  });
  if (!bad) return;
  const ops::LookupName lookup = ops::lookup_of(context.attrs);
  throw_bad_index(lookup.op, context.in(0), size, lookup.at_position, context.where);
}

void scatter_kernel(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  const Tensor &index = context.in(1), &source = context.in(2);
  Tensor& out = context.out();
  out.copy_(context.in(0));
  const int dim = dim_of(context);
  const int64_t size = length_of(out.sizes(), dim), length = length_of(index.sizes(), dim);
  BadIndex bad(size);
  for_width(out.dtype(), [&]<class T>(T) {
    const T* from = pointer<T>(source);
    const int64_t* at = pointer<int64_t>(index);
    T* to = pointer<T>(out);
    for_each_line<3>(index.sizes(), dim,
                     {strides_within(out, index.sizes()), index.strides(), strides_within(source, index.sizes())},
                     [&](const auto& o, const auto& step) {
                       for (int64_t i = 0; i < length; ++i) {
                         const int64_t position = o[1] + i * step[1], k = at[position];
                         if (bad.is(k, position)) continue;
                         to[o[0] + k * step[0]] = from[o[2] + i * step[2]];
                       }
                     });
  });
  bad.check(context);
}

namespace {

// Returns the arguments for write_row_sums() if the call sums whole rows: the index is the same along all dimensions
// after `dim`, and dimensions before it have size 1. Returns nullopt for all other calls. `onto`: null for zeros.
std::optional<RowSums> row_sums(const Tensor& values, const Tensor& index, const Tensor& out, int dim,
                                const void* onto) {
  const Dims &sizes = index.sizes(), &steps = values.strides();
  const int rank = sizes.rank();
  if (rank == 0) return std::nullopt;
  int64_t cols = 1;
  for (int d = 0; d < dim; ++d)
    if (sizes[d] != 1 || out.sizes()[d] != 1) return std::nullopt;
  for (int d = rank - 1; d > dim; --d) {
    const bool whole = sizes[d] == out.sizes()[d];
    if (sizes[d] == 1 && whole) continue;
    if (!whole || index.strides()[d] != 0 || steps[d] != cols) return std::nullopt;
    cols *= sizes[d];
  }
  return RowSums{.dtype = out.dtype(),
                 .index = pointer<int64_t>(index),
                 .index_step = index.strides()[dim],
                 .n = sizes[dim],
                 .values = values.impl()->data(),
                 .values_step = steps[dim],
                 .out = out.impl()->data(),
                 .rows = out.sizes()[dim],
                 .cols = cols,
                 .onto = onto};
}

}  // namespace

void scatter_sum_kernel(const KernelContext& context) {
  const RecorderScope run(nullptr);
  const Tensor &values = context.in(0), &index = context.in(1);
  const Tensor onto = context.has(2) ? context.in(2).contiguous() : Tensor();
  Tensor& out = context.out();
  const int dim = dim_of(context);
  const int64_t size = length_of(out.sizes(), dim), length = length_of(index.sizes(), dim);
  BadIndex bad(size);
  if (const std::optional<RowSums> sums = row_sums(values, index, out, dim,
                                                   onto.defined() ? onto.impl()->data() : nullptr)) {
    if (write_row_sums(*sums)) return;
    for (int64_t i = 0; i < sums->n; ++i) bad.is(sums->index[i * sums->index_step], i * sums->index_step);
    return bad.check(context);
  }
  if (onto.defined()) {
    const NoGrad off;
    Tensor sums = Tensor::empty(out.sizes(), {out.dtype()});
    scatter_sum_kernel({context.op, context.inputs.first(2), {&sums, 1}, context.attrs, context.where});
    out.copy_(onto + sums);
    return;
  }
  std::memset(static_cast<void*>(out.impl()->data()), 0, static_cast<size_t>(out.nbytes()));
  visit_dtype(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* from = pointer<T>(values);
    const int64_t* at = pointer<int64_t>(index);
    T* to = pointer<T>(out);
    for_each_line<3>(index.sizes(), dim,
                     {strides_within(out, index.sizes()), index.strides(), strides_within(values, index.sizes())},
                     [&](const auto& o, const auto& step) {
                       // Sums of 16-bit floats are kept in f32 and rounded once.
                       std::vector<C> sums;
                       if constexpr (!std::is_same_v<T, C>) sums.assign(static_cast<size_t>(size), C(0));
                       for (int64_t i = 0; i < length; ++i) {
                         const int64_t position = o[1] + i * step[1], k = at[position];
                         if (bad.is(k, position)) continue;
                         const C value = static_cast<C>(from[o[2] + i * step[2]]);
                         if constexpr (std::is_same_v<T, bool>) to[o[0] + k * step[0]] |= value;
                         else if constexpr (std::is_same_v<T, C>)
                           to[o[0] + k * step[0]] = ops::wrapping_add(to[o[0] + k * step[0]], value);
                         else sums[static_cast<size_t>(k)] += value;
                       }
                       if constexpr (!std::is_same_v<T, C>)
                         for (int64_t k = 0; k < size; ++k)
                           to[o[0] + k * step[0]] = static_cast<T>(sums[static_cast<size_t>(k)]);
                     });
  });
  bad.check(context);
}

void write_rows_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &source = context.in(1), &at = context.in(2), &out = context.out();
  if (x.impl()->data() != out.impl()->data())
    cast_kernel({context.op, context.inputs.first(1), context.outputs, context.attrs, context.where});
  const Dims &sizes = source.sizes(), &from_strides = source.strides(), &to_strides = out.strides();
  const int64_t heads = sizes[1], rows = sizes[2], cols = sizes[3], places = out.sizes()[2];
  if (sizes.numel() == 0) return;
  const int64_t* const place = pointer<int64_t>(at);
  for_width(out.dtype(), [&]<class T>(T) {
    const T* const from = pointer<T>(source);
    T* const to = pointer<T>(out);
    parallel_for(sizes[0] * heads, kElementwiseGrain / (rows * cols) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t b = line / heads, h = line % heads;
        for (int64_t t = 0; t < rows; ++t) {
          const int64_t row = place[b * at.strides()[0] + t * at.strides()[1]];
          if (row < 0 || row >= places) continue;
          const T* const read = from + b * from_strides[0] + h * from_strides[1] + t * from_strides[2];
          T* const written = to + b * to_strides[0] + h * to_strides[1] + row * to_strides[2];
          for (int64_t c = 0; c < cols; ++c) written[c * to_strides[3]] = read[c * from_strides[3]];
        }
      }
    });
  });
}

void cumsum_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &out = context.out();
  const int dim = dim_of(context);
  const bool reverse = context.attrs.ints[1] != 0;
  const int64_t length = length_of(x.sizes(), dim);
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // f64, because a running sum of ones in f32 would stop at 2^24.
    using Total = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    using Out = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
    const T* from = pointer<T>(x);
    Out* to = pointer<Out>(out);
    for_each_line<2>(x.sizes(), dim, {out.strides(), x.strides()}, [&](const auto& o, const auto& step) {
      Total total = 0;
      for (int64_t n = 0; n < length; ++n) {
        const int64_t i = reverse ? length - 1 - n : n;
        total = ops::wrapping_add(total, static_cast<Total>(from[o[1] + i * step[1]]));
        to[o[0] + i * step[0]] = ops::convert<Out>(total);
      }
    });
  });
}

}  // namespace rondo::cpu
