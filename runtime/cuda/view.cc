// The copies of view ops: the gradient of a slice, and cat, which undoes split. Each part is a copy of cast.cc.
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/cuda_kernels.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cuda {

void slice_grad_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  Tensor target = context.out();
  target.fill_(0);
  const auto& ints = context.attrs.ints;
  const int dim = static_cast<int>(ints[0]);
  const int64_t n = context.in(0).sizes()[dim];
  if (n > 0) target.slice(dim, {ints[1], ints[1] + (n - 1) * ints[2] + 1, ints[2]}).copy_(context.in(0));
}

void cat_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const int dim = static_cast<int>(context.attrs.ints[0]);
  int64_t begin = 0;
  for (const Tensor* part : context.inputs) {
    const int64_t n = part->sizes()[dim];
    if (n > 0) context.out().slice(dim, {begin, begin + n}).copy_(*part);
    begin += n;
  }
}

}  // namespace rondo::cuda
