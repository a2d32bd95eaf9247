#include <algorithm>
#include <numeric>
#include <vector>

#include "rondo/runtime/cpu/lines.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/reduction_def.h"

namespace rondo::cpu {
namespace {

// True if a < b, where NaN is above all numbers.
template <class C> bool below(C a, C b) {
  if constexpr (std::is_floating_point_v<C>) return a < b || (b != b && a == a);
  else return a < b;
}

// Calls fn(line, output, step) for each line: line(i) reads element i of x's line, and `output` is the output line.
template <class Fn>
void for_each_compared_line(const Tensor& x, const Tensor& out, const Dims& out_strides, int dim, Fn fn) {
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* from = pointer<T>(x);
    int64_t* to = pointer<int64_t>(out);
    for_each_line<2>(x.sizes(), dim, {out_strides, x.strides()}, [&](const auto& o, const auto& step) {
      const T* line = from + o[1];
      const int64_t stride = step[1];
      fn([line, stride](int64_t i) { return static_cast<C>(line[i * stride]); }, to + o[0], step[0]);
    });
  });
}

int64_t length_of(const Tensor& x, int dim) { return x.rank() == 0 ? 1 : x.sizes()[dim]; }

}  // namespace

void argmax_kernel(const KernelContext& context) {
  const Tensor& x = context.in(0);
  const int dim = ops::reduced_dim(context.attrs.ints[0]);
  const bool smallest = context.attrs.ints[2] != 0;
  const int64_t length = length_of(x, dim);
  // The result is dense. NaN wins for argmax and argmin, as in max and min.
  const Dims kept = contiguous_strides(ops::kept_sizes(x.sizes(), context.attrs.ints[0]));
  for_each_compared_line(x, context.out(), kept, dim, [&](auto line, int64_t* out, int64_t) {
    int64_t best = 0;
    for (int64_t i = 1; i < length; ++i) {
      const auto a = line(i), b = line(best);
      if (b != b) break;
      if (a != a || (smallest ? a < b : b < a)) best = i;
    }
    *out = best;
  });
}

void argsort_kernel(const KernelContext& context) {
  const Tensor& x = context.in(0);
  const int dim = static_cast<int>(context.attrs.ints[0]);
  const bool descending = context.attrs.ints[1] != 0;
  const int64_t length = length_of(x, dim);
  for_each_compared_line(x, context.out(), context.out().strides(), dim, [&](auto line, int64_t* out, int64_t step) {
    std::vector<int64_t> order(static_cast<size_t>(length));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return descending ? below(line(b), line(a)) : below(line(a), line(b));
    });
    for (int64_t i = 0; i < length; ++i) out[i * step] = order[static_cast<size_t>(i)];
  });
}

void topk_kernel(const KernelContext& context) {
  const Tensor& x = context.in(0);
  const int dim = static_cast<int>(context.attrs.ints[1]);
  const int64_t k = context.attrs.ints[0], length = length_of(x, dim);
  const bool largest = context.attrs.ints[2] != 0;
  if (k == 0) return;
  for_each_compared_line(x, context.out(), context.out().strides(), dim, [&](auto line, int64_t* out, int64_t step) {
    std::vector<int64_t> order(static_cast<size_t>(length));
    std::iota(order.begin(), order.end(), 0);
    // Of equal elements, the one with the lower index comes first, so that the choice does not depend on the algorithm.
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int64_t a, int64_t b) {
      const auto u = line(a), v = line(b);
      if (largest ? below(v, u) : below(u, v)) return true;
      if (largest ? below(u, v) : below(v, u)) return false;
      return a < b;
    });
    for (int64_t i = 0; i < k; ++i) out[i * step] = order[static_cast<size_t>(i)];
  });
}

}  // namespace rondo::cpu
