#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {

void rotary_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor x = context.in(0);
  const Tensor cosines = context.in(1).contiguous(), sines = context.in(2).contiguous();
  Tensor& out = context.out();
  const int rank = x.rank();
  const int64_t D = x.sizes()[rank - 1], T = x.sizes()[rank - 2], half = D / 2;
  if (out.numel() == 0) return;
  const int64_t outer = out.numel() / (T * D);
  const int64_t column_step = x.strides()[rank - 1], row_step = x.strides()[rank - 2];
  visit_floating(x.dtype(), [&](auto tag) {
    using Element = typename decltype(tag)::type;
    using C = ComputeType<Element>;
    const Element* from = reinterpret_cast<const Element*>(x.impl()->data());
    const C* cos = reinterpret_cast<const C*>(cosines.impl()->data());
    const C* sin = reinterpret_cast<const C*>(sines.impl()->data());
    Element* to = reinterpret_cast<Element*>(out.impl()->data());
    const C sign = context.attrs.ints[0] != 0 ? C(-1) : C(1);
    parallel_for(outer * T, std::max<int64_t>(1, kElementwiseGrain / 4 / D), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = row % T;
        int64_t rest = row / T, offset = t * row_step;
        for (int d = rank - 3; d >= 0; --d) {
          offset += rest % x.sizes()[d] * x.strides()[d];
          rest /= x.sizes()[d];
        }
        const Element* in = from + offset;
        Element* result = to + row * D;
        const C *c = cos + t * half, *s = sin + t * half;
        const auto turn = [&](int64_t step) {
          for (int64_t i = 0; i < half; ++i) {
            const C a = static_cast<C>(in[i * step]), b = static_cast<C>(in[(i + half) * step]);
            const C turn_by = s[i] * sign;
            result[i] = static_cast<Element>(a * c[i] - b * turn_by);
            result[i + half] = static_cast<Element>(b * c[i] + a * turn_by);
          }
        };
        if (column_step == 1) turn(1);
        else turn(column_step);
      }
    });
  });
}

}  // namespace rondo::cpu
