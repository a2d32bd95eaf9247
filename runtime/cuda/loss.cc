// Cross-entropy of logits: a block reads a row of logits twice and writes nothing in between. Also cross-entropy of a
// linear layer, whose logits are made in chunks and never exist as a whole.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/cuda/block_reduce.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/product.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/linear_loss.h"
#include "rondo/runtime/ops/lowered.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::cuda {
namespace {

constexpr const char* kCompute = R"cuda(
using C = typename RondoCompute<T>::Type;
RONDO_DEVICE C low_of(C) { return static_cast<C>(__longlong_as_double(0xFFF0000000000000ull)); }
)cuda";

constexpr const char* kCrossEntropy = R"cuda(
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
// One block. Writes the factor for the gradients of all rows: 1, or one over the number of rows that count.
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

std::string with_log_softmax(const char* kernels) {
  return absl::StrCat(scalar_function("rondo_exp", [](LoopValue x) { return scalar::exp(x); }),
                      scalar_function("rondo_log", [](LoopValue x) { return scalar::log(x); }), kCompute, kBlockReduce,
                      kernels);
}
const Source& loss_source() {
  static const auto* const text = new std::string(with_log_softmax(kCrossEntropy));
  static const Source source{"loss", *text};
  return source;
}

// Source text of linear_cross_entropy's own kernel. It runs between the products of a chunk, and computes the losses
// and the gradients of the logits.
constexpr const char* kHead = R"cuda(
constexpr int kVector = 16 / sizeof(T);
// 16 bytes of a row as they lie in memory, taken apart only where the elements are used: widened elements of a 16-bit
// type would fill twice the registers.
struct alignas(16) Vector { unsigned words[4]; };
RONDO_DEVICE float wide_element(const Vector& v, int e, float) { return __uint_as_float(v.words[e]); }
RONDO_DEVICE double wide_element(const Vector& v, int e, double) {
  return bits_as_double(static_cast<unsigned long long>(v.words[2 * e + 1]) << 32 | v.words[2 * e]);
}
template <class Half> RONDO_DEVICE float wide_element(const Vector& v, int e, Half) {
  return to_float(Half{static_cast<unsigned short>(v.words[e / 2] >> e % 2 * 16)});
}
RONDO_DEVICE void set_element(Vector& v, int e, float x) { v.words[e] = __float_as_uint(x); }
RONDO_DEVICE void set_element(Vector& v, int e, double x) {
  v.words[2 * e] = static_cast<unsigned>(bits_of(x));
  v.words[2 * e + 1] = static_cast<unsigned>(bits_of(x) >> 32);
}
template <class Half> RONDO_DEVICE void set_element(Vector& v, int e, Half x) {
  v.words[e / 2] |= static_cast<unsigned>(x.bits) << e % 2 * 16;  // of zeros
}
// A NaN may get lost here: the sum of exponentials has it anyway.
RONDO_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
RONDO_DEVICE double larger(double a, double b) { return fmax(a, b); }
struct Larger {
  template <class V> static RONDO_DEVICE V combine(V a, V b) { return larger(a, b); }
};
// From what exponentials are counted below a maximum: -inf - -inf is NaN.
RONDO_DEVICE C base_of(C most) { return most == low_of(C()) ? static_cast<C>(0) : most; }

// A thread's part of a row: whole vectors, THREADS apart, the first KEPT of them in registers and the next SHARED in
// shared memory; what lies behind is read again by each walk. And one of the elements behind the last whole vector.
// REQUIRES: each thread has KEPT + SHARED - 1 vectors.
struct Line {
  T* row;
  unsigned whole, rest;  // vectors; elements behind them
  Vector kept[KEPT];
  Vector* mine;  // in shared memory, THREADS apart
  C last;
  RONDO_DEVICE unsigned at(unsigned i) const { return threadIdx.x + i * THREADS; }
  RONDO_DEVICE bool has(int i) const { return i < KEPT + SHARED - 1 || at(i) < whole; }
  RONDO_DEVICE Vector* place(unsigned i) const { return reinterpret_cast<Vector*>(row) + at(i); }
  RONDO_DEVICE bool has_last() const { return threadIdx.x < rest; }
  RONDO_DEVICE T* last_place() const { return row + whole * kVector + threadIdx.x; }
  RONDO_DEVICE void read_row() {
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
      if (has(i)) kept[i] = read(place(i));
#pragma unroll
    for (int i = 0; i < SHARED; ++i)
      if (has(KEPT + i)) put(mine[i * THREADS], read(place(KEPT + i)));
    last = has_last() ? widen(read(last_place())) : low_of(C());
  }
  // use(vector, its place)
  template <class Use> RONDO_DEVICE void each(Use use) {
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
      if (has(i)) use(kept[i], place(i));
    for (int i = 0; i < SHARED; ++i)
      if (has(KEPT + i)) use(get(mine[i * THREADS]), place(KEPT + i));
    for (unsigned i = KEPT + SHARED; at(i) < whole; ++i) use(read(place(i)), place(i));
  }
};

// A block for each row of a chunk of logits, whose first row is row `first` of the call: its loss, and the gradient of
// its logits in their place. Rows whose target is out of range count as ignored. losses, arriving, scale: may be null.
// REQUIRES: rows begin at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rondo_head_rows(T* logits, const long long* target, C* losses, const C* arriving, const C* scale, long long rows,
                    long long first, long long cols, long long stride, long long ignored, double smooth,
                    double inverse_cols, long long arriving_step, long long wants_grad, DeviceStatus* status,
                    unsigned call) {
  constexpr int kWarps = THREADS / 32;
  __shared__ C parts[kWarps];
  __shared__ C at_target;
  RONDO_DYNAMIC_SHARED(Vector, vectors, SHARED * THREADS);
  const C smoothing = static_cast<C>(smooth), inverse = static_cast<C>(inverse_cols), share = smoothing * inverse;
  for (long long r = blockIdx.x; r < rows; r += gridDim.x) {
    const long long k = read(target + first + r);
    const bool ignore = k == ignored, bad = (k < 0 || k >= cols) && !ignore, none = bad || ignore;
    if (bad && threadIdx.x == 0) rondo_report(status, call, k, first + r);
    Line line;
    line.row = logits + r * stride;
    line.whole = static_cast<unsigned>(cols) / kVector;  // cuBLASLt takes fewer than 2^31 columns
    line.rest = static_cast<unsigned>(cols) % kVector;
    line.mine = vectors + threadIdx.x;
    line.read_row();
    if (threadIdx.x == 0) put(at_target, none ? static_cast<C>(0) : widen(read(line.row + k)));
    // One walk, over vectors as they arrive: the maximum so far, and the sum of exponentials below it.
    C top = line.last, sum = line.has_last() ? rondo_exp(line.last - base_of(line.last)) : static_cast<C>(0);
    C plain = line.has_last() ? line.last : static_cast<C>(0);  // the sum of logits
    line.each([&](const Vector& vector, const Vector*) {
      C most = top;
#pragma unroll
      for (int e = 0; e < kVector; ++e) most = larger(most, wide_element(vector, e, T()));
      const C base = base_of(most);
      sum = sum * rondo_exp(top - base);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const C x = wide_element(vector, e, T());
        sum = sum + rondo_exp(x - base);
        if (SMOOTHS) plain = plain + x;
      }
      top = most;
    });
    const C highest = block_reduce<Larger>(top, parts), base = base_of(highest);
    sum = block_reduce<Sum>(sum * rondo_exp(top - base), parts);
    if (SMOOTHS) plain = block_reduce<Sum>(plain, parts);
    const C total = highest + rondo_log(sum);
    if (losses != nullptr && threadIdx.x == 0) {
      C loss = 0;
      if (!none) {
        loss = total - get(at_target);
        if (SMOOTHS) loss = (static_cast<C>(1) - smoothing) * loss + smoothing * (total - plain * inverse);
      }
      write(losses + first + r, loss);
    }
    if (wants_grad != 0) {
      C weight = scale != nullptr ? read(scale) : static_cast<C>(1);
      if (arriving != nullptr) weight = read(arriving + (first + r) * arriving_step) * weight;
      const auto grad_of = [&](C x) { return none ? static_cast<C>(0) : (rondo_exp(x - total) - share) * weight; };
      line.each([&](const Vector& vector, Vector* place) {
        Vector grads = {};
#pragma unroll
        for (int e = 0; e < kVector; ++e) set_element(grads, e, convert<T>(grad_of(wide_element(vector, e, T()))));
        write(place, grads);
      });
      if (line.has_last()) write(line.last_place(), convert<T>(grad_of(line.last)));
      // The thread that wrote the target's gradient corrects it.
      const unsigned column = none ? 0 : static_cast<unsigned>(k), vector = column / kVector;
      const unsigned writer = vector < line.whole ? vector % THREADS : column % kVector;
      if (!none && threadIdx.x == writer) {
        const C grad = rondo_exp(get(at_target) - total) - share - (static_cast<C>(1) - smoothing);
        write(line.row + column, convert<T>(grad * weight));
      }
    }
    __syncthreads();  // at_target and the sums have been read
  }
}
)cuda";

constexpr Source kHeadBias = {"head_bias", R"cuda(
using C = typename RondoCompute<T>::Type;
// Adds a chunk's rows to the bias's sums, in order.
extern "C" __global__ void rondo_head_bias(const T* grads, C* sums, long long rows, long long cols, long long stride,
                                           long long begins) {
  for (long long c = first_index(); c < cols; c += index_step()) {
    C sum = begins != 0 ? static_cast<C>(0) : read(sums + c);
    for (long long r = 0; r < rows; ++r) sum = sum + widen(read(grads + r * stride + c));
    write(sums + c, sum);
  }
}
)cuda"};

const Source& head_source() {
  static const auto* const text = new std::string(with_log_softmax(kHead));
  static const Source source{"head", *text};
  return source;
}

// Multiplies `total` by the factor in place. If the factor is 1, nothing is written.
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
constexpr int64_t kMean = 0, kNone = 2;  // values of ops::Reduction

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
  Kernel kernel(const char* name) const {
    return kernel_of(device_.index, loss_source(), name, {{"T", type_name(dtype_)}});
  }
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

// ---- Cross-entropy of a linear layer, without whole logits

namespace {

using ops::LinearLossAttrs;

// Note [Chunks of logits on the device]. As on the CPU, rows go through the head in chunks. A product makes a chunk's
// logits. One kernel makes its losses and, in place, the gradient of its logits. Two products then make its part of dx
// and add its part of dweight to that of the earlier chunks. Each chunk takes four launches, and reads and writes
// dweight again. So chunks are as large as memory allows: at most a 64th of the device's memory, or 64 MiB if that is
// more. With 80 GB, one chunk holds up to 13,000 tokens of GPT-2 in 16 bits. Rows of a chunk begin at multiples of 128
// bytes for every V: cuBLASLt asks for 16, and with 128 the accesses of a warp cover whole sectors.
class Head {
 public:
  // Operands from `first` on: x, weight, bias, target.
  Head(const KernelContext& context, int first)
      : context_(context),
        attrs_(context.attrs),
        x_(dense(context.in(first))),
        lower_(attrs_.dtype_of_products(x_.dtype())),
        narrow_x_(x_.to(lower_)),
        weight_(ops::lowered_operand(context.in(first + 1), lower_)),
        target_(dense(context.in(first + 3))),
        rows_(x_.sizes()[0]),
        cols_(weight_.sizes()[0]),
        inner_(weight_.sizes()[1]),
        stride_(round_up(cols_, static_cast<int64_t>(128 / size_of(lower_)))) {
    if (context.has(first + 2)) bias_ = ops::lowered_operand(context.in(first + 2), lower_);
  }

  // Computes the results, chunk by chunk. `grad`: the gradient of the loss; undefined: 1. Results that are undefined
  // are not computed. REQUIRES: there are rows, columns and inner elements.
  void walk(const Tensor& grad, Tensor* loss, const Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
    const DType compute = compute_dtype(lower_);
    const bool wants_grad = dx.defined() || dweight.defined() || dbias.defined();
    const auto temporary = [&](Dims sizes, DType dtype) { return Tensor::empty(sizes, {dtype, x_.device()}); };
    const int64_t chunk = attrs_.rows_at_once(rows_, cols_, most_logits());
    const Tensor logits = temporary({chunk, stride_}, lower_);
    Tensor losses, scale, arriving, bias_sums;
    if (loss != nullptr) losses = temporary({rows_}, compute);
    if (wants_grad && reduction() == kMean) {
      scale = temporary({1}, compute);
      launch_blocks(device(), kernel(loss_source(), "rondo_mean_scale", compute), 1, kThreads, address_of(target_),
                    address_of(scale), count(rows_), count(ignored()), 1ll);
    }
    if (wants_grad && grad.defined()) arriving = dense(grad).to(compute);
    if (dbias.defined()) bias_sums = temporary({cols_}, compute);
    // 16-bit weight gradients of several chunks are added up in f32 and rounded once.
    Tensor weight_sum = dweight;
    if (dweight.defined() && chunk < rows_ && is_low_precision(dweight.dtype()))
      weight_sum = temporary(dweight.sizes(), kF32);
    for (int64_t at = 0; at < rows_; at += chunk) {
      const int64_t n = std::min(chunk, rows_ - at);
      const std::byte* const x = address_of(narrow_x_) + at * inner_ * static_cast<int64_t>(size_of(lower_));
      multiply(n, cols_, inner_, {x, inner_, 1}, {address_of(weight_), 1, inner_},
               {.data = address_of(logits), .row = stride_, .bias = bias_.defined()});
      run_rows(logits, losses, arriving, scale, at, n, wants_grad);
      if (dx.defined())
        multiply(n, inner_, cols_, {address_of(logits), stride_, 1}, {address_of(weight_), inner_, 1},
                 {.data = address_of(dx) + at * inner_ * static_cast<int64_t>(size_of(dx.dtype())),
                  .row = inner_,
                  .wide = dx.dtype() != lower_});
      if (dweight.defined())
        multiply(cols_, inner_, n, {address_of(logits), 1, stride_}, {x, inner_, 1},
                 {.data = address_of(weight_sum), .row = inner_, .wide = weight_sum.dtype() != lower_, .adds = at > 0});
      if (dbias.defined())
        launch_threads(device(), kernel(kHeadBias, "rondo_head_bias", lower_), cols_, address_of(logits),
                       address_of(bias_sums), count(n), count(cols_), count(stride_), static_cast<long long>(at == 0));
    }
    if (dweight.defined() && !weight_sum.is_same(dweight)) Tensor(dweight).copy_(weight_sum);
    if (dbias.defined()) Tensor(dbias).copy_(bias_sums);
    if (loss != nullptr) reduce(losses, *loss);
  }

 private:
  int64_t most_logits() const {
    constexpr int64_t kShare = 64, kLeast = 64 << 20;
    const auto memory = static_cast<int64_t>(device_state(device()).total_memory());
    return std::max(memory / kShare, kLeast) / static_cast<int64_t>(size_of(lower_));
  }
  static int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
  static long long count(int64_t n) { return n; }
  int device() const { return x_.device().index; }
  int64_t ignored() const { return context_.attrs.ints[0]; }
  int64_t reduction() const { return context_.attrs.ints[1]; }
  Kernel kernel(const Source& from, const char* name, DType dtype) const {
    return kernel_of(device(), from, name, {{"T", type_name(dtype)}});
  }
  // Note [A row in a block]. A row is read once: its vectors of 16 bytes stay in registers and shared memory until its
  // gradients are written. Each of 512 threads keeps 4 vectors in registers and 9 in shared memory. Together these are
  // 6656 vectors, or 53,248 elements of 16 bits (GPT-2's vocabulary is 50,257); 1024 threads keep as many elements of
  // 32 bits. A thread issues the loads of all its vectors before it uses the first one, and works on some while others
  // arrive: 104 KB are in flight for a block of 512. Two such blocks share a multiprocessor (64 registers a thread, 144
  // KB), so that one computes while the other waits. With the whole row in registers (13 vectors, 128 registers), a
  // multiprocessor would hold one block, and nothing would overlap. Arithmetic of f64 and f16 spills at 64 registers,
  // so for these types one block of 512 threads runs. The rest of a longer row is read twice, the second time from the
  // L2 cache.
  struct Lines {
    int kept, shared, threads, blocks;
    unsigned shared_bytes() const { return static_cast<unsigned>(shared * threads * 16); }
  };
  Lines lines() const {
    constexpr int kMostKept = 4, kMostShared = 9;
    const bool lean = lower_ == kBF16 || lower_ == kF32;
    const int64_t vectors = cols_ * static_cast<int64_t>(size_of(lower_)) / 16;
    const int threads = vectors <= kMostKept * kThreads                                ? kThreads
                        : !lean || vectors <= (kMostKept + kMostShared) * 2 * kThreads ? 2 * kThreads
                                                                                       : 4 * kThreads;
    const int64_t wanted = std::clamp<int64_t>((vectors + threads - 1) / threads, 1, kMostKept + kMostShared);
    const int kept = static_cast<int>(std::min<int64_t>(wanted, kMostKept));
    constexpr int kElsewhere = 1 << 10;  // bytes of shared memory that are not the row's
    const int fit = (device_state(device()).most_shared() - kElsewhere) / (16 * threads);
    return {kept, std::min(static_cast<int>(wanted) - kept, fit), threads, (lean ? 4 : 2) * kThreads / threads};
  }
  Kernel head_kernel(const Lines& lines) const {
    return kernel_of(device(), head_source(), "rondo_head_rows",
                     {{"T", type_name(lower_)},
                      {"KEPT", absl::StrCat(lines.kept)},
                      {"SHARED", absl::StrCat(lines.shared)},
                      {"THREADS", absl::StrCat(lines.threads)},
                      {"BLOCKS", absl::StrCat(lines.blocks)},
                      {"SMOOTHS", context_.attrs.floats[0] != 0 ? "1" : "0"}},
                     lines.shared_bytes());
  }
  struct Matrix {
    const void* data;
    int64_t row, column;  // strides
  };
  struct Result {
    void* data;
    int64_t row;        // stride
    bool wide = false;  // of the compute type
    bool bias = false;  // bias_ is added to the product
    bool adds = false;  // the product is added to the result in place
  };
  // Computes c (m, n) = a (m, k) b (k, n).
  void multiply(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const Result& c) const {
    MatmulCall call(lower_, m, n, k, {a.row, a.column}, {b.row, b.column}, {c.row, 1});
    call.wide = c.wide;
    call.bias = c.bias;
    MatmulOperands operands{.a = a.data, .b = b.data, .c = c.data};
    if (call.bias) operands.bias = address_of(bias_);
    if (c.adds) {
      call.epilogues[0] = Epilogue::kAdd;
      call.in_place[0] = true;
      operands.added[0] = c.data;
    }
    Product::get(device(), call)->run(operands);
  }

  void run_rows(const Tensor& logits, const Tensor& losses, const Tensor& arriving, const Tensor& scale, int64_t at,
                int64_t n, bool wants_grad) const {
    const auto address = [](const Tensor& t) { return t.defined() ? address_of(t) : nullptr; };
    const Lines per_row = lines();
    const IndexCheck check = check_indices(context_, cols_, /*at_position=*/true);
    launch_blocks(device(), head_kernel(per_row), n, {static_cast<unsigned>(per_row.threads), per_row.shared_bytes()},
                  address_of(logits), address_of(target_), address(losses), address(arriving), address(scale), count(n),
                  count(at), count(cols_), count(stride_), count(ignored()), context_.attrs.floats[0],
                  1.0 / static_cast<double>(cols_), static_cast<long long>(reduction() == kNone),
                  static_cast<long long>(wants_grad), check.status, check.call);
  }

  void reduce(const Tensor& losses, const Tensor& loss) const {
    if (reduction() == kNone)
      launch_threads(device(), kernel(loss_source(), "rondo_store_losses", loss.dtype()), rows_, address_of(losses),
                     address_of(loss), count(rows_));
    else
      launch_blocks(device(), kernel(loss_source(), "rondo_sum_losses", loss.dtype()), 1, kThreads, address_of(losses),
                    address_of(target_), address_of(loss), count(rows_), count(ignored()),
                    static_cast<long long>(reduction() == kMean));
  }

  const KernelContext& context_;
  LinearLossAttrs attrs_;
  Tensor x_;
  DType lower_;  // of the products and the logits
  Tensor narrow_x_, weight_, bias_, target_;
  int64_t rows_, cols_, inner_, stride_;
};

// Handles operands without rows, columns or inner elements, for which there is no product. They run as the op's
// decomposition. Returns false for all other operands.
bool run_in_parts(const KernelContext& context, int first) {
  if (context.in(first).numel() > 0 && context.in(first + 1).numel() > 0) return false;
  absl::InlinedVector<Tensor, kUsualInputs> in;
  for (const Tensor* input : context.inputs) in.push_back(input == nullptr ? Tensor() : *input);
  std::vector<Tensor> out(context.outputs.size());
  context.op.decompose(in, context.attrs, out);
  for (size_t i = 0; i < out.size(); ++i) context.outputs[i].copy_(out[i]);
  return true;
}

}  // namespace

void linear_cross_entropy_kernel(const KernelContext& context) {
  const ops::LinearLossScope scope;
  if (run_in_parts(context, 0)) return;
  ops::count_gradients(context);
  Head(context, 0)
      .walk({}, &context.out(0), ops::wanted_gradient(context, 0, 1), ops::wanted_gradient(context, 1, 1),
            ops::wanted_gradient(context, 2, 1));
}

void linear_cross_entropy_grad_kernel(const KernelContext& context) {
  const ops::LinearLossScope scope;
  if (run_in_parts(context, 1)) return;
  Head(context, 1)
      .walk(context.in(0), nullptr, ops::wanted_gradient(context, 0, 0), ops::wanted_gradient(context, 1, 0),
            ops::wanted_gradient(context, 2, 0));
}

void scale_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kScale, "rondo_scale", {{"T", type_name(out.dtype())}}), out.numel(),
                 address_of(out), address_of(context.in(1)), layout_of(out.sizes(), out));
}

}  // namespace rondo::cuda
