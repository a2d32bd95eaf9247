// Conversions between dtypes.
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/window.h"

namespace rondo::cpu {
void cast_kernel(const KernelContext& context) {
  visit_dtype(context.out().dtype(), [&](auto out) {
    visit_dtype(context.in(0).dtype(), [&](auto in) {
      using Out = typename decltype(out)::type;
      using In = typename decltype(in)::type;
      for_each_run<1>(context, [](const ops::ElementwiseRun& run, const double*) {
        ops::elementwise_run<Out, In>(run, [](ComputeType<In> v) { return ops::convert<Out>(v); });
      });
    });
  });
}

void copy_kernel(const KernelContext& context) {
  cast_kernel({context.op, context.inputs.subspan(1), context.outputs, context.attrs, context.where});
}

void overwrite_kernel(const KernelContext& context) {
  const Tensor &base = context.in(0), &out = context.out();
  if (base.impl()->data() != out.impl()->data())
    cast_kernel({context.op, context.inputs.first(1), context.outputs, context.attrs, context.where});
  Tensor window = ops::look(out, ops::window_of_call(context.attrs, out.numel()));
  if (context.has(1))
    return cast_kernel({context.op, context.inputs.subspan(1), {&window, 1}, context.attrs, context.where});
  fill_kernel({context.op, {}, {&window, 1}, {.floats = {context.attrs.floats[1]}}, context.where});
}

void window_copy_kernel(const KernelContext& context) {
  const Tensor window = ops::look(context.in(0), ops::window_of_call(context.attrs, context.in(0).numel()));
  const Tensor* const source = &window;
  cast_kernel({context.op, {&source, 1}, context.outputs, context.attrs, context.where});
}

}  // namespace rondo::cpu
