// Kernels that fill new tensors.
#include <algorithm>
#include <cstring>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

// Sets out[i] to value(i) for each i. The output is dense.
template <class T, class Value> void fill_dense(Tensor& out, Value value) {
  T* to = reinterpret_cast<T*>(out.impl()->data());
  parallel_for(out.numel(), kElementwiseGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = value(i);
  });
}
template <class Value> void fill_dense(Tensor& out, Value value) {
  visit_dtype(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill_dense<T>(out, [&](int64_t i) { return ops::convert<T>(value(i)); });
  });
}

}  // namespace

void fill_kernel(const KernelContext& context) {
  const Attrs& attrs = context.attrs;
  visit_dtype(context.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = attrs.floats.size() > 0 ? ops::convert<T>(double{attrs.floats[0]}) : ops::convert<T>(attrs.ints[0]);
    double carried = 0;  // carries the bytes of `value`, because a double cannot represent every integer
    std::memcpy(&carried, &value, sizeof(T));
    const auto fill = [](const ops::ElementwiseRun& run, const double* bytes) {
      T element;
      std::memcpy(static_cast<void*>(&element), bytes, sizeof(T));
      for (int64_t row = 0; row < run.rows; ++row) {
        T* const to = reinterpret_cast<T*>(run.out + row * run.out_step);
        if (run.out_stride == 1) std::fill_n(to, run.n, element);
        else
          for (int64_t i = 0; i < run.n; ++i) to[i * run.out_stride] = element;
      }
    };
    for_each_run<0>(context, fill, &carried);
  });
}

void zeros_kernel(const KernelContext& context) {
  fill_kernel({context.op, context.inputs, context.outputs, Attrs{.floats = {0.0}}, context.where});
}

void arange_kernel(const KernelContext& context) {
  const Attrs& attrs = context.attrs;
  const double real_first = attrs.floats[0], real_step = attrs.floats[1];
  if (attrs.ints[2] == 0)
    return fill_dense(context.out(), [=](int64_t i) { return real_first + static_cast<double>(i) * real_step; });
  const bool wide = attrs.ints.size() > 3;
  const auto first = static_cast<uint64_t>(wide ? attrs.ints[3] : static_cast<int64_t>(real_first)),
             step = static_cast<uint64_t>(wide ? attrs.ints[4] : static_cast<int64_t>(real_step));
  // Computes with unsigned numbers, because i * step alone may overflow even if the sum does not.
  fill_dense(context.out(), [=](int64_t i) { return static_cast<int64_t>(first + static_cast<uint64_t>(i) * step); });
}

}  // namespace rondo::cpu
