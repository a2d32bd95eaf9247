// Cross-entropy of logits, fused: a block reads a row of logits three times and writes nothing between. That of a
// linear layer runs in the parts of its decomposition, with whole logits.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::cuda {
namespace {

// Sums of a block are those of its threads' strided elements, combined in a tree: the same in every run.
constexpr const char* kCrossEntropy = R"cuda(
using C = typename RondoCompute<T>::Type;
template <class Op, class V> RONDO_DEVICE V block_reduce(V value, V (&parts)[8]) {
  value = warp_reduce<Op, 32>(value);
  __syncthreads();  // the last reduction has been read
  if (threadIdx.x % 32 == 0) put(parts[threadIdx.x / 32], value);
  __syncthreads();
  V all = get(parts[0]);
#pragma unroll
  for (int w = 1; w < 8; ++w) all = Op::combine(all, get(parts[w]));
  return all;
}
RONDO_DEVICE C low_of(C) { return static_cast<C>(__longlong_as_double(0xFFF0000000000000ull)); }

// A block for each row. Rows whose target is out of range count as ignored.
extern "C" __global__ void rondo_cross_entropy(const T* logits, const long long* target, C* lse, C* losses,
                                               long long rows, long long cols, long long ignored, double smooth,
                                               double inverse, DeviceStatus* status, unsigned call) {
  __shared__ C parts[8];
  const C smoothing = static_cast<C>(smooth);
  for (long long r = blockIdx.x; r < rows; r += gridDim.x) {
    const T* const row = logits + r * cols;
    C top = low_of(C());
    for (long long i = threadIdx.x; i < cols; i += blockDim.x) top = Max::combine(top, widen(read(row + i)));
    top = block_reduce<Max>(top, parts);
    C sum = 0, plain = 0;
    for (long long i = threadIdx.x; i < cols; i += blockDim.x) {
      const C x = widen(read(row + i));
      sum = sum + rondo_exp(x - top);
      plain = plain + x;
    }
    sum = block_reduce<Sum>(sum, parts);
    if (smoothing != 0) plain = block_reduce<Sum>(plain, parts);
    if (threadIdx.x != 0) continue;
    const C result = top + rondo_log(sum);
    write(lse + r, result);
    const long long k = read(target + r);
    const bool bad = (k < 0 || k >= cols) && k != ignored;
    if (bad) rondo_report(status, call, k, r);
    C loss = 0;
    if (!bad && k != ignored) {
      loss = result - widen(read(row + k));
      if (smoothing != 0)
        loss = (static_cast<C>(1) - smoothing) * loss + smoothing * (result - plain * static_cast<C>(inverse));
    }
    write(losses + r, loss);
  }
}
// One block.
extern "C" __global__ void rondo_sum_losses(const C* losses, const long long* target, T* out, long long rows,
                                            long long ignored, long long mean) {
  __shared__ C parts[8];
  __shared__ long long counts[8];
  C sum = 0;
  long long count = 0;
  for (long long r = threadIdx.x; r < rows; r += blockDim.x) {
    sum = sum + read(losses + r);
    count += read(target + r) != ignored ? 1 : 0;
  }
  sum = block_reduce<Sum>(sum, parts);
  count = block_reduce<Sum>(count, counts);
  if (threadIdx.x == 0) write(out, convert<T>(mean != 0 ? sum / static_cast<C>(count) : sum));
}
extern "C" __global__ void rondo_store_losses(const C* losses, T* out, long long rows) {
  for (long long r = first_index(); r < rows; r += index_step()) write(out + r, convert<T>(read(losses + r)));
}
// One block: by what the gradients of rows are multiplied.
extern "C" __global__ void rondo_mean_scale(const long long* target, C* scale, long long rows, long long ignored,
                                            long long mean) {
  __shared__ long long counts[8];
  long long count = 0;
  for (long long r = threadIdx.x; r < rows; r += blockDim.x) count += read(target + r) != ignored ? 1 : 0;
  count = block_reduce<Sum>(count, counts);
  if (threadIdx.x == 0) write(scale, mean != 0 ? static_cast<C>(1) / static_cast<C>(count) : static_cast<C>(1));
}
// `out` may be `logits`: each thread reads an element before it overwrites it. grad_step: 1 if each row has its own.
extern "C" __global__ void rondo_cross_entropy_grad(const T* grad, const T* logits, const long long* target,
                                                    const C* lse, const C* scale, T* out, long long rows,
                                                    long long cols, long long ignored, double smooth, double inverse,
                                                    long long grad_step, DeviceStatus* status, unsigned call) {
  const C smoothing = static_cast<C>(smooth), share = smoothing * static_cast<C>(inverse);
  for (long long r = blockIdx.x; r < rows; r += gridDim.x) {
    const long long k = read(target + r);
    const bool bad = (k < 0 || k >= cols) && k != ignored;
    if (bad && threadIdx.x == 0) rondo_report(status, call, k, r);
    const C weight = widen(read(grad + r * grad_step)) * read(scale), at = read(lse + r);
    for (long long i = threadIdx.x; i < cols; i += blockDim.x) {
      C result = 0;
      if (!bad && k != ignored) {
        result = rondo_exp(widen(read(logits + r * cols + i)) - at) - share;
        if (i == k) result = result - (static_cast<C>(1) - smoothing);
        result = result * weight;
      }
      write(out + r * cols + i, convert<T>(result));
    }
  }
}
)cuda";

const Source& source() {
  static const auto* const text = new std::string(
      absl::StrCat(scalar_function("rondo_exp", [](LoopValue x) { return scalar::exp(x); }),
                   scalar_function("rondo_log", [](LoopValue x) { return scalar::log(x); }), kCrossEntropy));
  static const Source source{"loss", *text};
  return source;
}

// In place: nothing is written where the factor is 1.
constexpr Source kScale = {"scale", R"cuda(
extern "C" __global__ void rondo_scale(T* total, const T* factor, RondoLayout layout) {
  const auto by = widen(read(factor));
  if (by == 1) return;
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[1];
    offsets_of(layout, i, at);
    write(total + at[0], convert<T>(widen(read(total + at[0])) * by));
  }
}
)cuda"};

// Attributes: ints {ignore_index, reduction}, floats {label_smoothing}.
constexpr int64_t kMean = 0, kNone = 2;  // ops::Reduction

class Call {
 public:
  Call(const KernelContext& context, const Tensor& logits)
      : attrs_(context.attrs),
        device_(logits.device()),
        dtype_(logits.dtype()),
        rows_(logits.sizes()[0]),
        cols_(logits.sizes()[1]) {}
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t ignored() const { return attrs_.ints[0]; }
  bool per_row() const { return attrs_.ints[1] == kNone; }
  long long mean() const { return attrs_.ints[1] == kMean ? 1 : 0; }
  double smoothing() const { return attrs_.floats[0]; }
  double inverse() const { return 1.0 / static_cast<double>(cols_); }
  int device() const { return device_.index; }
  Kernel kernel(const char* name) const { return kernel_of(device_.index, source(), name, {{"T", type_name(dtype_)}}); }
  Tensor temporary(int64_t n) const { return Tensor::empty({n}, {compute_dtype(dtype_), device_}); }

 private:
  const Attrs& attrs_;
  Device device_;
  DType dtype_;
  int64_t rows_, cols_;
};

}  // namespace

void cross_entropy_kernel(const KernelContext& context) {
  const Tensor logits = dense(context.in(0)), target = dense(context.in(1));
  const Tensor &out = context.out(0), &lse = context.out(1);
  const Call call(context, logits);
  const Tensor losses = call.temporary(call.rows());
  const IndexCheck check = check_indices(context, call.cols(), /*at_position=*/true);
  launch_blocks(call.device(), call.kernel("rondo_cross_entropy"), call.rows(), kThreads, address_of(logits),
                address_of(target), address_of(lse), address_of(losses), call.rows(), call.cols(), call.ignored(),
                call.smoothing(), call.inverse(), check.status, check.call);
  if (call.per_row())
    launch_threads(call.device(), call.kernel("rondo_store_losses"), call.rows(), address_of(losses), address_of(out),
                   call.rows());
  else
    launch_blocks(call.device(), call.kernel("rondo_sum_losses"), 1, kThreads, address_of(losses), address_of(target),
                  address_of(out), call.rows(), call.ignored(), call.mean());
}

void cross_entropy_grad_kernel(const KernelContext& context) {
  const Tensor grad = dense(context.in(0)), logits = dense(context.in(1)), target = dense(context.in(2)),
               lse = dense(context.in(3));
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const Call call(context, logits);
  const Tensor scale = call.temporary(1);
  launch_blocks(call.device(), call.kernel("rondo_mean_scale"), 1, kThreads, address_of(target), address_of(scale),
                call.rows(), call.ignored(), call.mean());
  const IndexCheck check = check_indices(context, call.cols(), /*at_position=*/true);
  launch_blocks(call.device(), call.kernel("rondo_cross_entropy_grad"), call.rows(), kThreads, address_of(grad),
                address_of(logits), address_of(target), address_of(lse), address_of(scale), address_of(out),
                call.rows(), call.cols(), call.ignored(), call.smoothing(), call.inverse(),
                static_cast<long long>(call.per_row()), check.status, check.call);
}

void scale_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kScale, "rondo_scale", {{"T", type_name(out.dtype())}}), out.numel(),
                 address_of(out), address_of(context.in(1)), layout_of(out.sizes(), out));
}

}  // namespace rondo::cuda
