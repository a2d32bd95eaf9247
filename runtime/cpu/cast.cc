// Conversions between dtypes.
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

template <class Out, class In> Out convert(In value) {
  if constexpr (std::is_same_v<Out, bool>) return value != In(0);
  else if constexpr (std::is_same_v<Out, BFloat16> || std::is_same_v<Out, Float16>)
    return Out(static_cast<float>(value));
  else if constexpr (std::is_floating_point_v<In> && std::is_integral_v<Out>) return ops::to_integer<Out>(value);
  else return static_cast<Out>(value);
}

}  // namespace

void cast_kernel(const KernelContext& context) {
  visit_dtype(context.out().dtype(), [&](auto out) {
    visit_dtype(context.in(0).dtype(), [&](auto in) {
      using Out = typename decltype(out)::type;
      using In = typename decltype(in)::type;
      for_each_run<1>(context, [](const ops::ElementwiseRun& run, const double*) {
        ops::elementwise_run<Out, In>(run, [](ComputeType<In> v) { return convert<Out>(v); });
      });
    });
  });
}

void copy_kernel(const KernelContext& context) {
  cast_kernel({context.op, context.inputs.subspan(1), context.outputs, context.attrs, context.where});
}

void fill_kernel(const KernelContext& context) {
  visit_dtype(context.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto fill = [](const ops::ElementwiseRun& run, const double* scalars) {
      const T value = convert<T>(scalars[0]);
      ops::elementwise_run<T, T>(run, [value](ComputeType<T>) { return value; });
    };
    for_each_run<1>(context, fill, context.attrs.floats.data());
  });
}

}  // namespace rondo::cpu
