// Kernels that fill new tensors.
#include <cstring>

#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/factory.h"

namespace rondo::cuda {
namespace {

constexpr Source kFill = {"fill", R"cuda(
extern "C" __global__ void rondo_fill(WORD* out, unsigned long long bits, RondoLayout layout) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[1];
    offsets_of(layout, i, at);
    write(out + at[0], static_cast<WORD>(bits));
  }
}
)cuda"};

constexpr Source kArange = {"arange", R"cuda(
extern "C" __global__ void rondo_arange(OUT* out, long long n, double first, double step) {
  for (long long i = first_index(); i < n; i += index_step())
    write(out + i, convert<OUT>(first + static_cast<double>(i) * step));
}
// Unsigned: i * step alone may leave the range that the sum is in.
extern "C" __global__ void rondo_arange_integers(OUT* out, long long n, unsigned long long first,
                                                 unsigned long long step) {
  for (long long i = first_index(); i < n; i += index_step())
    write(out + i, convert<OUT>(static_cast<long long>(first + static_cast<unsigned long long>(i) * step)));
}
)cuda"};

}  // namespace

void fill_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const Attrs& attrs = context.attrs;
  uint64_t bits = 0;
  visit_dtype(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = attrs.floats.size() > 0 ? ops::convert<T>(double{attrs.floats[0]}) : ops::convert<T>(attrs.ints[0]);
    std::memcpy(&bits, &value, sizeof(T));
  });
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kFill, "rondo_fill", {{"WORD", word_name(out.dtype())}}), out.numel(),
                 address_of(out), bits, layout_of(out.sizes(), out));
}

void zeros_kernel(const KernelContext& context) {
  fill_kernel({context.op, context.inputs, context.outputs, Attrs{.floats = {0.0}}, context.where});
}

void arange_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  const int64_t n = out.numel();
  if (n == 0) return;
  const Attrs& attrs = context.attrs;
  const bool integers = attrs.ints[2] != 0, wide = attrs.ints.size() > 3;
  const int device = out.device().index;
  const Kernel kernel = kernel_of(device, kArange, integers ? "rondo_arange_integers" : "rondo_arange",
                                  {{"OUT", type_name(out.dtype())}});
  const double first = attrs.floats[0], step = attrs.floats[1];
  if (!integers) return launch_threads(device, kernel, n, address_of(out), n, first, step);
  launch_threads(device, kernel, n, address_of(out), n, wide ? attrs.ints[3] : static_cast<int64_t>(first),
                 wide ? attrs.ints[4] : static_cast<int64_t>(step));
}

}  // namespace rondo::cuda
