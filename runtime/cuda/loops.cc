// Elementwise ops on any dtype and layout: one kernel, whose body is the op's own lowering written out as text
// (scalar_text.h). If compile/ is linked, floats run as its generated kernels, and only integers run here.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/elementwise_body.h"

namespace rondo::cuda {
namespace {

// The text's defines: INPUTS, their number; A0 to A2, their element types; OUT and RESULT, the types of the result in
// memory and in BODY; C, the compute type; S, the scalars' type; BODY, the op's lowering.
constexpr Source kElementwise = {"loops", R"cuda(
template <class Compute, class T> struct RondoOperand {
  static RONDO_DEVICE Compute of(T x) { return widen(x); }
};
template <class Compute> struct RondoOperand<Compute, bool> {
  static RONDO_DEVICE bool of(bool x) { return x; }
};
extern "C" __global__ void rondo_elementwise(OUT* out, const A0* in0, const A1* in1, const A2* in2, RondoLayout layout,
                                             S first, S second) {
  const C s0 = static_cast<C>(first), s1 = static_cast<C>(second);
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[INPUTS + 1];
    offsets_of(layout, i, at);
    const auto a0 = RondoOperand<C, A0>::of(read(in0 + at[1]));
#if INPUTS > 1
    const auto a1 = RondoOperand<C, A1>::of(read(in1 + at[2]));
#endif
#if INPUTS > 2
    const auto a2 = RondoOperand<C, A2>::of(read(in2 + at[3]));
#endif
    RESULT result;
    BODY
    write(out + at[0], convert<OUT>(result));
    static_cast<void>(s0);
    static_cast<void>(s1);
  }
}
)cuda"};

RondoLayout layout_of_call(const KernelContext& context) {
  const Tensor& out = context.out();
  switch (context.op.body->inputs) {
    case 1: return layout_in_memory_order(out, context.in(0));
    case 2: return layout_in_memory_order(out, context.in(0), context.in(1));
    default: return layout_in_memory_order(out, context.in(0), context.in(1), context.in(2));
  }
}

}  // namespace

Tensor dense(const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  const NoGrad off;
  const RecorderScope run(nullptr);
  Tensor copy = Tensor::empty(tensor.sizes(), {tensor.dtype(), tensor.device()});
  copy.copy_(tensor);
  return copy;
}

void elementwise_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const int n = context.op.body->inputs;
  DType dtypes[ops::kMaxElementwiseInputs];
  for (int i = 0; i < n; ++i) dtypes[i] = context.in(i).dtype();
  const DType compute = compute_dtype(dtypes[n - 1]);
  ScalarText body(compute, context.attrs, {dtypes, static_cast<size_t>(n)});
  context.op.lower(body);
  // The scalars are rounded to the compute type here, on the host, as the CPU's kernel rounds them.
  double scalars[2] = {};
  for (size_t i = 0; i < context.attrs.floats.size(); ++i)
    visit_dtype(compute, [&](auto tag) {
      const auto scalar = ops::convert<typename decltype(tag)::type>(double{context.attrs.floats[i]});
      if constexpr (std::is_integral_v<decltype(scalar)>) {
        const int64_t integer = scalar;
        std::memcpy(&scalars[i], &integer, sizeof integer);
      } else {
        scalars[i] = static_cast<double>(scalar);
      }
    });
  const bool bool_result = out.dtype() == kBool;
  const auto type = [&](int i) { return type_name(dtypes[i < n ? i : n - 1]); };
  const int device = out.device().index;
  const Kernel kernel = kernel_of(device, kElementwise, "rondo_elementwise",
                                  {{"INPUTS", absl::StrCat(n)},
                                   {"A0", type(0)},
                                   {"A1", type(1)},
                                   {"A2", type(2)},
                                   {"OUT", type_name(out.dtype())},
                                   {"RESULT", bool_result ? "bool" : ScalarText::type_of(compute)},
                                   {"C", ScalarText::type_of(compute)},
                                   {"S", is_floating(compute) ? "double" : "long long"},
                                   {"BODY", body.text()}});
  const auto address = [&](int i) { return i < n ? address_of(context.in(i)) : nullptr; };
  launch_threads(device, kernel, out.numel(), address_of(out), address(0), address(1), address(2),
                 layout_of_call(context), scalars[0], scalars[1]);
}

}  // namespace rondo::cuda
