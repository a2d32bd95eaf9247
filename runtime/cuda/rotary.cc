// Rotary position embedding.
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"

namespace rondo::cuda {
namespace {

constexpr Source kRotary = {"rotary", R"cuda(
// A thread for each pair of columns. The layout is that of the rows of x; y is dense.
extern "C" __global__ void rondo_rotary(T* y, const T* x, const typename RondoCompute<T>::Type* cosines,
                                        const typename RondoCompute<T>::Type* sines, RondoLayout layout,
                                        long long column_step, long long times, long long half, long long inverse) {
  using C = typename RondoCompute<T>::Type;
  const C sign = static_cast<C>(inverse != 0 ? -1 : 1);
  for (long long n = first_index(); n < layout.numel * half; n += index_step()) {
    const long long row = n / half, i = n - row * half, angle = row % times * half + i;
    long long at[1];
    offsets_of(layout, row, at);
    const C a = widen(read(x + at[0] + i * column_step)), b = widen(read(x + at[0] + (i + half) * column_step));
    const C c = read(cosines + angle), turn_by = read(sines + angle) * sign;
    write(y + 2 * row * half + i, convert<T>(a * c - b * turn_by));
    write(y + 2 * row * half + half + i, convert<T>(b * c + a * turn_by));
  }
}
)cuda"};

}  // namespace

void rotary_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &out = context.out();
  if (out.numel() == 0) return;
  const Tensor cosines = dense(context.in(1)), sines = dense(context.in(2));
  const int last = x.rank() - 1, device = x.device().index;
  Dims rows = x.sizes(), strides = x.strides();
  rows.erase(last);
  strides.erase(last);
  const int64_t half = x.sizes()[last] / 2;
  launch_threads(device, kernel_of(device, kRotary, "rondo_rotary", {{"T", type_name(x.dtype())}}), rows.numel() * half,
                 address_of(out), address_of(x), address_of(cosines), address_of(sines),
                 layout_of(IterationSpace<1>(rows, std::array<Dims, 1>{strides})), x.strides()[last],
                 x.sizes()[last - 1], half, context.attrs.ints[0]);
}

}  // namespace rondo::cuda
