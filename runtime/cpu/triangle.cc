// Kernels of tril and triu: they copy the elements on one side of a diagonal and set the others to 0.
#include "rondo/runtime/ops/triangle.h"

#include "rondo/runtime/cpu/lines.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

template <class T> void run(const KernelContext& context, const ops::Triangle& triangle) {
  const Tensor &x = context.in(0), &out = context.out();
  const T* const from = reinterpret_cast<const T*>(x.impl()->data());
  T* const to = reinterpret_cast<T*>(out.impl()->data());
  for_each_line<2>(x.sizes(), x.rank() - 1, {out.strides(), x.strides()}, [&](const auto& at, const auto& step) {
    const int64_t row = at[0] / triangle.cols % triangle.rows;  // the result is dense
    const int64_t first = triangle.first(row), end = std::max(first, triangle.end(row));
    T* const line = to + at[0];
    std::fill(line, line + first, T{});
    for (int64_t col = first; col < end; ++col) line[col] = from[at[1] + col * step[1]];
    std::fill(line + end, line + triangle.cols, T{});
  });
}

void triangle_kernel(const KernelContext& context, bool lower) {
  const Tensor& x = context.in(0);
  const ops::Triangle triangle = ops::triangle_of(x.sizes(), context.attrs.ints[0], lower);
  // Elements are only copied, so only their width matters.
  switch (size_of(x.dtype())) {
    case 1: return run<uint8_t>(context, triangle);
    case 2: return run<uint16_t>(context, triangle);
    case 4: return run<uint32_t>(context, triangle);
    default: return run<uint64_t>(context, triangle);
  }
}

}  // namespace

void tril_kernel(const KernelContext& context) { triangle_kernel(context, true); }
void triu_kernel(const KernelContext& context) { triangle_kernel(context, false); }

}  // namespace rondo::cpu
