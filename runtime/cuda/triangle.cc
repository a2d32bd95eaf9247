// Kernels of tril and triu: they copy the elements on one side of a diagonal and set the others to 0.
#include "rondo/runtime/ops/triangle.h"

#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"

namespace rondo::cuda {
namespace {

// The operands of the layout: the result, which is dense, and the input.
constexpr Source kTriangle = {"triangle", R"cuda(
extern "C" __global__ void rondo_triangle(WORD* out, const WORD* x, RondoLayout layout, long long rows, long long cols,
                                          long long diagonal, long long lower) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[2];
    offsets_of(layout, i, at);
    const long long col = at[0] % cols, edge = at[0] / cols % rows + diagonal;
    const bool stays = lower != 0 ? col <= edge : col >= edge;
    write(out + at[0], stays ? read(x + at[1]) : static_cast<WORD>(0));
  }
}
)cuda"};

void triangle_kernel(const KernelContext& context, bool lower) {
  const Tensor &x = context.in(0), &out = context.out();
  if (x.numel() == 0) return;
  const ops::Triangle triangle = ops::triangle_of(x.sizes(), context.attrs.ints[0], lower);
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kTriangle, "rondo_triangle", {{"WORD", word_name(out.dtype())}}),
                 out.numel(), address_of(out), address_of(x), layout_of(x.sizes(), out, x),
                 static_cast<long long>(triangle.rows), static_cast<long long>(triangle.cols),
                 static_cast<long long>(triangle.diagonal), static_cast<long long>(lower));
}

}  // namespace

void tril_kernel(const KernelContext& context) { triangle_kernel(context, true); }
void triu_kernel(const KernelContext& context) { triangle_kernel(context, false); }

}  // namespace rondo::cuda
