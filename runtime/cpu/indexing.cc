// Elements picked and placed by an index tensor along one dimension.
#include <cstring>
#include <vector>

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/lines.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {
namespace {

// Strides of an index tensor's operand: `t` may be larger than the index in every dimension.
Dims strides_within(const Tensor& t, const Dims& sizes) {
  return t.rank() == 0 ? Dims::filled(sizes.rank(), 0) : t.strides();
}

int dim_of(const KernelContext& context) { return static_cast<int>(context.attrs.ints[0]); }
int64_t length_of(const Dims& sizes, int dim) { return sizes.empty() ? 1 : sizes[dim]; }

// Calls fn(T{}) with an unsigned integer as wide as the dtype: where elements only move, that is all that matters.
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

void scatter_sum_kernel(const KernelContext& context) {
  const Tensor &values = context.in(0), &index = context.in(1), &out = context.out();
  const int dim = dim_of(context);
  const int64_t size = length_of(out.sizes(), dim), length = length_of(index.sizes(), dim);
  BadIndex bad(size);
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
                       // 16-bit sums are kept in f32 and rounded once.
                       std::vector<C> sums;
                       if constexpr (!std::is_same_v<T, C>) sums.assign(static_cast<size_t>(size), C(0));
                       for (int64_t i = 0; i < length; ++i) {
                         const int64_t position = o[1] + i * step[1], k = at[position];
                         if (bad.is(k, position)) continue;
                         const C value = static_cast<C>(from[o[2] + i * step[2]]);
                         if constexpr (std::is_same_v<T, bool>) to[o[0] + k * step[0]] |= value;
                         else if constexpr (std::is_same_v<T, C>) to[o[0] + k * step[0]] += value;
                         else sums[static_cast<size_t>(k)] += value;
                       }
                       if constexpr (!std::is_same_v<T, C>)
                         for (int64_t k = 0; k < size; ++k)
                           to[o[0] + k * step[0]] = static_cast<T>(sums[static_cast<size_t>(k)]);
                     });
  });
  bad.check(context);
}

void cumsum_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &out = context.out();
  const int dim = dim_of(context);
  const bool reverse = context.attrs.ints[1] != 0;
  const int64_t length = length_of(x.sizes(), dim);
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // A running sum in f32 stops at 2^24 ones, so that of f32 is kept in f64.
    using Total = std::conditional_t<std::is_integral_v<T>, int64_t,
                                     std::conditional_t<std::is_same_v<T, float>, double, ComputeType<T>>>;
    using Out = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
    const T* from = pointer<T>(x);
    Out* to = pointer<Out>(out);
    for_each_line<2>(x.sizes(), dim, {out.strides(), x.strides()}, [&](const auto& o, const auto& step) {
      Total total = 0;
      for (int64_t n = 0; n < length; ++n) {
        const int64_t i = reverse ? length - 1 - n : n;
        total += static_cast<Total>(from[o[1] + i * step[1]]);
        to[o[0] + i * step[0]] = static_cast<Out>(total);
      }
    });
  });
}

}  // namespace rondo::cpu
