#include "rondo/runtime/cpu/indexing.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {
namespace {

template <class T> const T* pointer(const Tensor& t) { return reinterpret_cast<const T*>(t.impl()->data()); }
template <class T> T* pointer(Tensor& t) { return reinterpret_cast<T*>(t.impl()->data()); }

void require_indices(const KernelContext& context, const Tensor& indices, int64_t size,
                     std::optional<int64_t> allowed = std::nullopt) {
  const int64_t* index = pointer<int64_t>(indices);
  for (int64_t i = 0; i < indices.numel(); ++i)
    if ((index[i] < 0 || index[i] >= size) && index[i] != allowed)
      throw_op_error(context.op.name, absl::StrCat("index ", index[i], " at position ", i, " is out of range for size ", size),
                     context.where);
}

}  // namespace

void embedding_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor weight = context.in(0).contiguous(), indices = context.in(1).contiguous();
  const int64_t rows = weight.sizes()[0];
  require_indices(context, indices, rows);
  const size_t bytes = static_cast<size_t>(weight.sizes()[1]) * size_of(weight.dtype());
  const int64_t* index = pointer<int64_t>(indices);
  const std::byte* from = weight.impl()->data();
  std::byte* to = context.out().impl()->data();
  parallel_for(indices.numel(), std::max<int64_t>(1, (1 << 16) / static_cast<int64_t>(bytes + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * bytes, from + index[i] * bytes, bytes);
  });
}

namespace {

// Adds to each row of the table the sum of its gradients, taken in the order of the indices. 16-bit ones are summed in f32 and
// rounded once.
void add_rows(const KernelContext& context, const Tensor& grad, const Tensor& indices, Tensor& table) {
  const int64_t rows = table.sizes()[0], cols = table.sizes()[1], n = indices.numel();
  require_indices(context, indices, rows);
  const int64_t* index = pointer<int64_t>(indices);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return index[a] < index[b]; });
  std::vector<int64_t> starts;  // of each row's gradients in `order`
  for (int64_t i = 0; i < n; ++i)
    if (i == 0 || index[order[i]] != index[order[i - 1]]) starts.push_back(i);
  starts.push_back(n);
  visit_floating(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* g = pointer<T>(grad);
    T* to = pointer<T>(table);
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(cols, 1));
    parallel_for(std::ssize(starts) - 1, grain, [&](int64_t begin, int64_t end) {
      std::vector<C> sum(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        std::fill(sum.begin(), sum.end(), C(0));
        for (int64_t i = starts[r]; i < starts[r + 1]; ++i)
          for (int64_t c = 0; c < cols; ++c) sum[c] = sum[c] + static_cast<C>(g[order[i] * cols + c]);
        T* row = to + index[order[starts[r]]] * cols;
        for (int64_t c = 0; c < cols; ++c) row[c] = static_cast<T>(static_cast<C>(row[c]) + static_cast<C>(static_cast<T>(sum[c])));
      }
    });
  });
}

}  // namespace

void embedding_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  Tensor& out = context.out();
  const int64_t bytes = out.nbytes();
  std::byte* to = out.impl()->data();
  parallel_for(bytes, kElementwiseGrain * 4, [&](int64_t begin, int64_t end) {
    std::memset(to + begin, 0, static_cast<size_t>(end - begin));
  });
  add_rows(context, context.in(0).contiguous(), context.in(1).contiguous(), out);
}

void embedding_grad_onto_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const NoGrad off;
  Tensor& out = context.out();
  if (out.impl()->data() != context.in(0).impl()->data()) out.copy_(context.in(0));
  add_rows(context, context.in(1).contiguous(), context.in(2).contiguous(), out);
}

namespace {

// Attributes of cross_entropy: ints {ignore_index, reduction}, floats {label_smoothing}.
struct LossOptions {
  int64_t ignore_index;
  int64_t reduction;  // ops::Reduction: 0 mean, 1 sum, 2 none
  double smoothing;
  explicit LossOptions(const Attrs& attrs)
      : ignore_index(attrs.ints[0]), reduction(attrs.ints[1]), smoothing(attrs.floats[0]) {}
};

int64_t count_targets(const Tensor& target, int64_t ignore_index) {
  int64_t n = 0;
  for (int64_t i = 0; i < target.numel(); ++i) n += pointer<int64_t>(target)[i] != ignore_index;
  return n;
}

}  // namespace

void cross_entropy_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const LossOptions options(context.attrs);
  const Tensor logits = context.in(0).contiguous(), target = context.in(1).contiguous();
  const int64_t rows = logits.sizes()[0], cols = logits.sizes()[1];
  require_indices(context, target, cols, options.ignore_index);
  const int64_t* index = pointer<int64_t>(target);
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* x = pointer<T>(logits);
    C* lse = pointer<C>(context.out(1));
    std::vector<C> losses(static_cast<size_t>(rows));
    const C smoothing = static_cast<C>(options.smoothing), inverse = static_cast<C>(1.0 / static_cast<double>(cols));
    parallel_for(rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(cols, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x + r * cols;
        const C top = max_row<C>(cols, [row](int64_t i) { return static_cast<C>(row[i]); });
        const C total = sum_row<C>(cols, [=](int64_t i) { return scalar::exp(static_cast<C>(row[i]) - top); });
        lse[r] = top + scalar::log(total);
        if (index[r] == options.ignore_index) {
          losses[r] = C(0);
          continue;
        }
        C loss = lse[r] - static_cast<C>(row[index[r]]);
        if (options.smoothing != 0) {
          const C mean = sum_row<C>(cols, [row](int64_t i) { return static_cast<C>(row[i]); }) * inverse;
          loss = (C(1) - smoothing) * loss + smoothing * (lse[r] - mean);
        }
        losses[r] = loss;
      }
    });
    T* out = pointer<T>(context.out(0));
    if (options.reduction == 2) {
      for (int64_t r = 0; r < rows; ++r) out[r] = static_cast<T>(losses[r]);
      return;
    }
    C total = sum_row<C>(rows, [&](int64_t i) { return losses[i]; });
    if (options.reduction == 0) total = total / static_cast<C>(count_targets(target, options.ignore_index));
    *out = static_cast<T>(total);
  });
}

void cross_entropy_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const LossOptions options(context.attrs);
  const Tensor grad = context.in(0).contiguous(), logits = context.in(1).contiguous(), target = context.in(2).contiguous();
  const int64_t rows = logits.sizes()[0], cols = logits.sizes()[1];
  const int64_t* index = pointer<int64_t>(target);
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T *g = pointer<T>(grad), *x = pointer<T>(logits);
    const C* lse = pointer<C>(context.in(3));
    T* dx = pointer<T>(context.out());
    const C smoothing = static_cast<C>(options.smoothing);
    const C share = smoothing * static_cast<C>(1.0 / static_cast<double>(cols));
    const C scale = options.reduction == 0 ? C(1) / static_cast<C>(count_targets(target, options.ignore_index)) : C(1);
    parallel_for(rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(cols, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x + r * cols;
        T* out = dx + r * cols;
        if (index[r] == options.ignore_index) {
          for (int64_t i = 0; i < cols; ++i) out[i] = T(C(0));
          continue;
        }
        const C weight = static_cast<C>(g[options.reduction == 2 ? r : 0]) * scale, total = lse[r];
        const int64_t hit = index[r];
        const C p = scalar::exp(static_cast<C>(row[hit]) - total) - share;
        // `out` may be `row` (OpDef::reuses): equal, or apart.
#pragma GCC ivdep
        for (int64_t i = 0; i < cols; ++i)
          out[i] = static_cast<T>((scalar::exp(static_cast<C>(row[i]) - total) - share) * weight);
        out[hit] = static_cast<T>((p - (C(1) - smoothing)) * weight);
      }
    });
  });
}

}  // namespace rondo::cpu
