#include "rondo/runtime/cpu/loops.h"

namespace rondo::cpu {

template <int N> void for_each_run(const KernelContext& context, ElementwiseRunFn<N> run, const void* body) {
  Tensor& result = context.out();
  ElementwiseRun<N> whole;
  whole.out = result.impl()->data();
  whole.out_stride = 1;
  bool dense = result.is_contiguous();
  for (int k = 0; k < N; ++k) {
    const Tensor& input = context.in(k);
    whole.in[k] = input.impl()->data();
    whole.strides[k] = 1;
    dense = dense && input.is_contiguous() && input.sizes() == result.sizes();
  }
  whole.n = result.numel();
  if (dense && whole.n <= kElementwiseGrain) return run(whole, body);
  if (whole.n == 0) return;
  // Addresses count bytes from here.
  std::array<int64_t, N + 1> width;
  width[0] = static_cast<int64_t>(size_of(result.dtype()));
  for (int k = 0; k < N; ++k) width[k + 1] = static_cast<int64_t>(size_of(context.in(k).dtype()));
  const auto run_at = [&](const std::array<int64_t, N + 1>& offsets, const std::array<int64_t, N + 1>& strides,
                          int64_t n) {
    ElementwiseRun<N> piece;
    piece.out = whole.out + offsets[0] * width[0];
    piece.out_stride = strides[0];
    for (int k = 0; k < N; ++k) {
      piece.in[k] = whole.in[k] + offsets[k + 1] * width[k + 1];
      piece.strides[k] = strides[k + 1];
    }
    piece.n = n;
    run(piece, body);
  };
  if (dense) {
    std::array<int64_t, N + 1> unit;
    unit.fill(1);
    parallel_for(whole.n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N + 1> offsets;
      offsets.fill(begin);
      run_at(offsets, unit, end - begin);
    });
    return;
  }
  std::array<const Tensor*, N + 1> operands;
  operands[0] = &result;
  for (int k = 0; k < N; ++k) operands[k + 1] = &context.in(k);
  StridedLoop<N + 1>(result.sizes(), operands).run(run_at);
}

template void for_each_run<1>(const KernelContext&, ElementwiseRunFn<1>, const void*);
template void for_each_run<2>(const KernelContext&, ElementwiseRunFn<2>, const void*);
template void for_each_run<3>(const KernelContext&, ElementwiseRunFn<3>, const void*);

}  // namespace rondo::cpu
