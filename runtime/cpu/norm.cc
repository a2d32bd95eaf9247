#include <vector>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

// Calls fn(TypeTag<T>) for the dtype of output 0, with recording off (kernels may make dense copies of their inputs).
template <class Fn> void for_floating(const KernelContext& context, Fn fn) {
  RecorderScope run(nullptr);
  visit_floating(context.out().dtype(), fn);
}
int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kElementwiseGrain / 4 / std::max<int64_t>(cols, 1)); }

}  // namespace

void layer_norm_kernel(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Tensor x = context.in(0).contiguous(), weight = context.in(1).contiguous(), bias = context.in(2).contiguous();
    // Counts rows by the output, because empty rows have statistics, too: the mean of no elements is NaN.
    const int64_t cols = x.sizes().back(), rows = context.out(1).numel();
    const C inverse = static_cast<C>(1.0 / static_cast<double>(cols)), eps = static_cast<C>(context.attrs.floats[0]);
    const T *in = pointer<T>(x), *w = pointer<T>(weight), *b = pointer<T>(bias);
    T* y = pointer<T>(context.out(0));
    C *means = pointer<C>(context.out(1)), *rstds = pointer<C>(context.out(2));
    parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = in + r * cols;
        T* out = y + r * cols;
        const C mean = sum_row<C>(cols, [row](int64_t i) { return static_cast<C>(row[i]); }) * inverse;
        const C variance = sum_row<C>(cols,
                                      [row, mean](int64_t i) {
                                        const C d = static_cast<C>(row[i]) - mean;
                                        return d * d;
                                      }) *
                           inverse;
        const C rstd = scalar::rsqrt(variance + eps);
        for (int64_t i = 0; i < cols; ++i)
          out[i] = static_cast<T>((static_cast<C>(row[i]) - mean) * rstd * static_cast<C>(w[i]) + static_cast<C>(b[i]));
        means[r] = mean;
        rstds[r] = rstd;
      }
    });
  });
}

void rms_norm_kernel(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const Tensor x = context.in(0).contiguous(), weight = context.in(1).contiguous();
    // Counts rows by the output, because empty rows have statistics, too: the mean of no elements is NaN.
    const int64_t cols = x.sizes().back(), rows = context.out(1).numel();
    const C inverse = static_cast<C>(1.0 / static_cast<double>(cols)), eps = static_cast<C>(context.attrs.floats[0]);
    const T *in = pointer<T>(x), *w = pointer<T>(weight);
    T* y = pointer<T>(context.out(0));
    C* rstds = pointer<C>(context.out(1));
    parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = in + r * cols;
        T* out = y + r * cols;
        const C mean_square = sum_row<C>(cols,
                                         [row](int64_t i) {
                                           const C v = static_cast<C>(row[i]);
                                           return v * v;
                                         }) *
                              inverse;
        const C rstd = scalar::rsqrt(mean_square + eps);
        for (int64_t i = 0; i < cols; ++i)
          out[i] = static_cast<T>(static_cast<C>(row[i]) * rstd * static_cast<C>(w[i]));
        rstds[r] = rstd;
      }
    });
  });
}

namespace {

// Computes the gradients of layer_norm (kCentred; operands grad, x, weight, mean, rstd) and of rms_norm (without mean
// and bias).
template <bool kCentred> void norm_grad(const KernelContext& context) {
  for_floating(context, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    constexpr int kRstd = kCentred ? 4 : 3;
    constexpr int64_t kSums = kCentred ? 2 : 1;  // sums for dweight, and for dbias if there is a bias
    const Tensor grad = context.in(0).contiguous(), x = context.in(1).contiguous(), weight = context.in(2).contiguous();
    const Tensor mean_of_rows = context.in(3).contiguous(), rstd_of_rows = context.in(kRstd).contiguous();
    const int64_t cols = x.sizes().back(), rows = cols ? x.numel() / cols : 0;
    const C inverse = static_cast<C>(1.0 / static_cast<double>(cols));
    const T *g = pointer<T>(grad), *in = pointer<T>(x), *w = pointer<T>(weight);
    const C *means = pointer<C>(mean_of_rows), *rstds = pointer<C>(rstd_of_rows);
    T *dx = pointer<T>(context.out(0)), *dw = pointer<T>(context.out(1));
    // The gradients of the parameters are summed in the order of Note [Column order].
    const int64_t chunk = column_chunk_rows(rows), chunks = (rows + chunk - 1) / chunk;
    std::vector<C> partial(static_cast<size_t>(std::max<int64_t>(chunks, 1) * cols * kSums), C(0));
    parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        C *sum_w = partial.data() + k * cols * kSums, *sum_b = sum_w + cols;
        for (int64_t r = k * chunk; r < std::min(rows, (k + 1) * chunk); ++r) {
          const T *gr = g + r * cols, *xr = in + r * cols;
          T* out = dx + r * cols;
          const C mean = kCentred ? means[r] : C(0), rstd = rstds[r];
          const auto hat_of = [=](int64_t i) {
            if constexpr (kCentred) return (static_cast<C>(xr[i]) - mean) * rstd;
            else return static_cast<C>(xr[i]) * rstd;
          };
          C mean_g = C(0);
          if constexpr (kCentred)
            mean_g = sum_row<C>(cols, [=](int64_t i) { return static_cast<C>(gr[i]) * static_cast<C>(w[i]); }) *
                     inverse;
          const C mean_gx = sum_row<C>(
                                cols,
                                [=](int64_t i) { return static_cast<C>(gr[i]) * static_cast<C>(w[i]) * hat_of(i); }) *
                            inverse;
          for (int64_t i = 0; i < cols; ++i) {
            const C gi = static_cast<C>(gr[i]), hat = hat_of(i), gw = gi * static_cast<C>(w[i]);
            if constexpr (kCentred) out[i] = static_cast<T>((gw - mean_g - hat * mean_gx) * rstd);
            else out[i] = static_cast<T>((gw - hat * mean_gx) * rstd);
            sum_w[i] = sum_w[i] + gi * hat;
            if constexpr (kCentred) sum_b[i] = sum_b[i] + gi;
          }
        }
      }
    });
    for (int64_t k = 1; k < chunks; ++k)
      for (int64_t i = 0; i < cols * kSums; ++i) partial[i] = partial[i] + partial[k * cols * kSums + i];
    for (int64_t i = 0; i < cols; ++i) dw[i] = static_cast<T>(partial[i]);
    if constexpr (kCentred) {
      T* db = pointer<T>(context.out(2));
      for (int64_t i = 0; i < cols; ++i) db[i] = static_cast<T>(partial[cols + i]);
    }
  });
}

}  // namespace

void layer_norm_grad_kernel(const KernelContext& context) { norm_grad<true>(context); }
void rms_norm_grad_kernel(const KernelContext& context) { norm_grad<false>(context); }

}  // namespace rondo::cpu
