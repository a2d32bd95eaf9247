#include "rondo/runtime/cpu/loops.h"

#include <algorithm>

#include "rondo/runtime/iteration_space.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
template <int N> void for_each_run(const KernelContext& context, ops::ElementwiseRunFn run, const double* scalars) {
  Tensor& result = context.out();
  ops::ElementwiseRun whole;
  whole.out = result.impl()->data();
  bool dense = result.is_contiguous();
  for (int k = 0; k < N; ++k) {
    const Tensor& input = context.in(k);
    whole.in[k] = input.impl()->data();
    whole.strides[k] = 1;
    dense = dense && input.is_contiguous() && input.sizes() == result.sizes();
  }
  whole.n = result.numel();
  if (dense && whole.n <= kElementwiseGrain) return run(whole, scalars);
  if (whole.n == 0) return;
  std::array<const Tensor*, N + 1> operands;
  std::array<int64_t, N + 1> width;  // bytes of an element
  for (int k = 0; k <= N; ++k) {
    operands[k] = k == 0 ? &result : &context.in(k - 1);
    width[k] = static_cast<int64_t>(size_of(operands[k]->dtype()));
  }
  // The part of `whole` that starts at these elements.
  const auto part_at = [&](const std::array<int64_t, N + 1>& offsets, int64_t n) {
    ops::ElementwiseRun part = whole;
    part.out += offsets[0] * width[0];
    for (int k = 0; k < N; ++k) part.in[k] += offsets[k + 1] * width[k + 1];
    part.n = n;
    return part;
  };
  if (dense) {
    parallel_for(whole.n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N + 1> offsets;
      offsets.fill(begin);
      run(part_at(offsets, end - begin), scalars);
    });
    return;
  }
  const IterationSpace<N + 1> space(result.sizes(), operands);
  const int last = space.sizes.rank() - 1;
  const int64_t n = space.sizes[last];
  whole.out_stride = space.strides[0][last];
  for (int k = 0; k < N; ++k) whole.strides[k] = space.strides[k + 1][last];
  if (last == 0) {
    parallel_for(n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N + 1> offsets;
      for (int k = 0; k <= N; ++k) offsets[k] = begin * space.strides[k][0];
      run(part_at(offsets, end - begin), scalars);
    });
    return;
  }
  int64_t all_rows = 1;
  for (int d = 0; d < last; ++d) all_rows *= space.sizes[d];
  const int64_t rows = space.sizes[last - 1];  // one step apart
  whole.out_step = space.strides[0][last - 1] * width[0];
  for (int k = 0; k < N; ++k) whole.steps[k] = space.strides[k + 1][last - 1] * width[k + 1];
  parallel_for(all_rows, std::max<int64_t>(1, kElementwiseGrain / n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end;) {
      std::array<int64_t, N + 1> offsets{};
      int64_t rest = row;
      for (int d = last - 1; d >= 0; --d) {
        const int64_t index = rest % space.sizes[d];
        rest /= space.sizes[d];
        for (int k = 0; k <= N; ++k) offsets[k] += index * space.strides[k][d];
      }
      ops::ElementwiseRun part = part_at(offsets, n);
      part.rows = std::min(end - row, rows - row % rows);
      run(part, scalars);
      row += part.rows;
    }
  });
}

template void for_each_run<0>(const KernelContext&, ops::ElementwiseRunFn, const double*);
template void for_each_run<1>(const KernelContext&, ops::ElementwiseRunFn, const double*);
template void for_each_run<2>(const KernelContext&, ops::ElementwiseRunFn, const double*);
template void for_each_run<3>(const KernelContext&, ops::ElementwiseRunFn, const double*);

void elementwise_kernel(const KernelContext& context) {
  const ops::ElementwiseBody& body = *context.op.body;
  const ops::ElementwiseRunFn run = body.run[static_cast<int>(context.in(body.inputs - 1).dtype())];
  const auto& floats = context.attrs.floats;
  double scalars[2] = {};
  for (size_t i = 0; i < floats.size(); ++i) scalars[i] = floats[i];
  switch (body.inputs) {
    case 1: return for_each_run<1>(context, run, scalars);
    case 2: return for_each_run<2>(context, run, scalars);
    default: return for_each_run<3>(context, run, scalars);
  }
}

}  // namespace rondo::cpu
