// Conversions between dtypes, and copies, of any layout.
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/window.h"

namespace rondo::cuda {
namespace {

constexpr Source kCast = {"cast", R"cuda(
extern "C" __global__ void rondo_cast(OUT* out, const IN* in, RondoLayout layout) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[2];
    offsets_of(layout, i, at);
    write(out + at[0], convert<OUT>(widen(read(in + at[1]))));
  }
}
// Four neighbours at a time.
extern "C" __global__ void rondo_cast_dense(OUT* out, const IN* in, long long n) {
  for (long long i = 4 * first_index(); i < n; i += 4 * index_step()) {
    const int exist = n - i < 4 ? static_cast<int>(n - i) : 4;
    const Pack<IN, 4> from = load<4>(in + i, exist);
    Pack<OUT, 4> to = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) to.at[e] = convert<OUT>(widen(from.at[e]));
    store(out + i, to, exist);
  }
}
)cuda"};

// Converts `in` to the dtype and layout of `out`. Between equal dtypes the bits do not change, not even those of NaN.
void convert(const Tensor& in, const Tensor& out) {
  if (out.numel() == 0) return;
  const bool same = in.dtype() == out.dtype();
  const std::initializer_list<Define> types = {{"IN", same ? word_name(in.dtype()) : type_name(in.dtype())},
                                               {"OUT", same ? word_name(out.dtype()) : type_name(out.dtype())}};
  const int device = out.device().index;
  const RondoLayout layout = layout_of(out.sizes(), out, in);
  if (is_dense(layout, 2))
    return launch_threads(device, kernel_of(device, kCast, "rondo_cast_dense", types), (layout.numel + 3) / 4,
                          address_of(out), address_of(in), layout.numel);
  launch_threads(device, kernel_of(device, kCast, "rondo_cast", types), layout.numel, address_of(out), address_of(in),
                 layout);
}

}  // namespace

void cast_kernel(const KernelContext& context) { convert(context.in(0), context.out()); }
void copy_kernel(const KernelContext& context) { convert(context.in(1), context.out()); }
void overwrite_kernel(const KernelContext& context) {
  if (address_of(context.in(0)) != address_of(context.out())) convert(context.in(0), context.out());
  Tensor window = ops::look(context.out(), ops::window_of_call(context.attrs, context.out().numel()));
  if (context.has(1)) return convert(context.in(1), window);
  fill_kernel({context.op, {}, {&window, 1}, {.floats = {context.attrs.floats[1]}}, context.where});
}

void window_copy_kernel(const KernelContext& context) {
  convert(ops::look(context.in(0), ops::window_of_call(context.attrs, context.in(0).numel())), context.out());
}

}  // namespace rondo::cuda
