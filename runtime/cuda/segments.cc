// Kernels that sum values by index: indices are sorted into segments, and then each segment is summed (ops/segments.h).
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/sort.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/lookup.h"

namespace rondo::cuda {
namespace {

constexpr Source kSegments = {"segments", R"cuda(
// Segment k begins at the first of the sorted keys that is not below k.
extern "C" __global__ void rondo_segment_starts(long long* starts, const unsigned long long* keys, long long n,
                                                long long segments) {
  for (long long k = first_index(); k <= segments; k += index_step()) {
    long long low = 0, high = n;
    while (low < high) {
      const long long middle = (low + high) / 2;
      if (read(keys + middle) < static_cast<unsigned long long>(k)) low = middle + 1;
      else high = middle;
    }
    write(starts + k, low);
  }
}
extern "C" __global__ void rondo_sum_segments(T* out, const T* values, const long long* starts, long long cols,
                                              long long n) {
  for (long long i = first_index(); i < n; i += index_step()) {
    const long long k = i / cols, column = i - k * cols, end = read(starts + k + 1);
    typename RondoCompute<T>::Type sum = 0;
    for (long long row = read(starts + k); row < end; ++row) sum = sum + widen(read(values + row * cols + column));
    write(out + i, convert<T>(sum));
  }
}
)cuda"};

}  // namespace

void sort_segments_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor index = context.in(0).contiguous();
  const Tensor &order = context.out(0), &starts = context.out(1);
  const int64_t n = index.numel(), segments = context.attrs.ints[0];
  const int device = order.device().index;
  if (n == 0) return void(context.out(1).fill_(0));
  const ops::LookupName lookup = ops::lookup_in(context.attrs.ints[1]);
  const Order sorted = sort_rows(index, segments, check_indices_of(lookup.op, context, segments, lookup.at_position));
  context.out(0).copy_(sorted.positions);
  launch_threads(device, kernel_of(device, kSegments, "rondo_segment_starts", {{"T", type_name(kF32)}}), segments + 1,
                 address_of(starts), address_of(sorted.keys), n, segments);
}

void sum_segments_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor values = context.in(0).contiguous(), starts = context.in(1).contiguous();
  Tensor& out = context.out();
  if (out.numel() == 0) return;
  if (context.has(2)) {
    Tensor sums = Tensor::empty(out.sizes(), {out.dtype(), out.device()});
    sum_segments_kernel({context.op, context.inputs.first(2), {&sums, 1}, context.attrs, context.where});
    out.copy_(context.in(2) + sums);
    return;
  }
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kSegments, "rondo_sum_segments", {{"T", type_name(out.dtype())}}),
                 out.numel(), address_of(out), address_of(values), address_of(starts), out.numel() / out.sizes()[0],
                 out.numel());
}

}  // namespace rondo::cuda
