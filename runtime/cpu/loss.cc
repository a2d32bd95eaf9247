// Cross-entropy of logits, and of a linear layer whose logits are computed in chunks.
#include <algorithm>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/mean_loss.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/linear_loss.h"
#include "rondo/runtime/ops/lowered.h"

namespace rondo::cpu {
namespace {

using ops::LinearLossAttrs;

int64_t loss_grain(int64_t cols) { return std::max<int64_t>(1, 4096 / std::max<int64_t>(cols, 1)); }

// The computation for one row of logits, in the compute dtype.
template <class C> struct RowLoss {
  int64_t cols, ignore_index;
  C smoothing, inverse, share;
  RowLoss(const LossOptions& options, int64_t cols)
      : cols(cols),
        ignore_index(options.ignore_index),
        smoothing(static_cast<C>(options.smoothing)),
        inverse(static_cast<C>(1.0 / static_cast<double>(cols))),
        share(smoothing * inverse) {}

  template <class T> C logsumexp(const T* row) const {
    const C top = max_row<C>(cols, [row](int64_t i) { return static_cast<C>(row[i]); });
    const C total = sum_row<C>(cols, [=](int64_t i) { return scalar::exp(static_cast<C>(row[i]) - top); });
    return top + scalar::log(total);
  }
  template <class T> C loss(const T* row, int64_t target, C lse) const {
    if (target == ignore_index) return C(0);
    const C hard = lse - static_cast<C>(row[target]);
    if (smoothing == C(0)) return hard;
    const C mean = sum_row<C>(cols, [row](int64_t i) { return static_cast<C>(row[i]); }) * inverse;
    return (C(1) - smoothing) * hard + smoothing * (lse - mean);
  }
  // Computes the gradient of one row of logits. `out` may be `row` (OpDef::reuses), or memory that does not overlap it.
  template <class T> void gradient(const T* row, T* out, int64_t target, C lse, C weight) const {
    if (target == ignore_index) {
      for (int64_t i = 0; i < cols; ++i) out[i] = T(C(0));
      return;
    }
    const C p = scalar::exp(static_cast<C>(row[target]) - lse) - share, shared = share;
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < cols; ++i)
      out[i] = static_cast<T>((scalar::exp(static_cast<C>(row[i]) - lse) - shared) * weight);
    out[target] = static_cast<T>((p - (C(1) - smoothing)) * weight);
  }
};

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
    const RowLoss<C> of_row(options, cols);
    parallel_for(rows, loss_grain(cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        lse[r] = of_row.logsumexp(x + r * cols);
        losses[r] = of_row.loss(x + r * cols, index[r], lse[r]);
      }
    });
    reduce_losses(options, target, losses, context.out(0));
  });
}

void cross_entropy_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const LossOptions options(context.attrs);
  const Tensor grad = context.in(0).contiguous(), logits = context.in(1).contiguous(),
               target = context.in(2).contiguous();
  const int64_t rows = logits.sizes()[0], cols = logits.sizes()[1];
  // The targets are checked again: on a stream, this kernel runs even if the forward has found a bad index.
  require_indices(context, target, cols, options.ignore_index);
  const int64_t* index = pointer<int64_t>(target);
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T *g = pointer<T>(grad), *x = pointer<T>(logits);
    const C* lse = pointer<C>(context.in(3));
    T* dx = pointer<T>(context.out());
    const RowLoss<C> of_row(options, cols);
    const C scale = mean_scale<C>(options, target);
    parallel_for(rows, loss_grain(cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        of_row.gradient(x + r * cols, dx + r * cols, index[r], lse[r],
                        static_cast<C>(g[options.reduction == 2 ? r : 0]) * scale);
    });
  });
}

// ---- Cross-entropy of a linear layer

namespace {

// Note [Chunks of logits]. Rows go through the head (the linear layer and the loss) in chunks. A chunk computes its
// logits, their losses, the gradient of the logits in the same memory, and from this its contributions to dx, dweight
// and dbias. So memory for logits is needed only for one chunk, not for all N rows of V logits. The chunks'
// contributions are added in order; which rows form a chunk depends only on sizes.
class Head {
 public:
  // The operands x, weight, bias and target are the inputs from `first` on.
  Head(const KernelContext& context, int first)
      : context_(context),
        options_(context.attrs),
        attrs_(context.attrs),
        x_(context.in(first).contiguous()),
        lower_(attrs_.dtype_of_products(x_.dtype())),
        weight_(ops::lowered_operand(context.in(first + 1), lower_)),
        target_(context.in(first + 3).contiguous()),
        rows_(x_.sizes()[0]),
        cols_(weight_.sizes()[0]) {
    if (context.has(first + 2)) bias_ = ops::lowered_operand(context.in(first + 2), lower_);
    require_indices(context, target_, cols_, options_.ignore_index);
  }

  // Runs all chunks. `grad`: the gradient of the loss; undefined means 1. Results that are undefined are not computed.
  void walk(const Tensor& grad, Tensor* loss, Tensor dx, Tensor dweight, Tensor dbias) {
    visit_floating(lower_, [&](auto tag) { run<typename decltype(tag)::type>(grad, loss, dx, dweight, dbias); });
  }

 private:
  template <class T> void run(const Tensor& grad, Tensor* loss, Tensor& dx, Tensor& dweight, Tensor& dbias) {
    using C = ComputeType<T>;
    const bool any_grad = dx.defined() || dweight.defined() || dbias.defined();
    const RowLoss<C> of_row(options_, cols_);
    const C scale = mean_scale<C>(options_, target_);
    std::vector<C> arriving = {C(1)};
    if (grad.defined()) {
      const Tensor wide = grad.contiguous().to(dtype_of<C>);
      arriving.assign(pointer<C>(wide), pointer<C>(wide) + wide.numel());
    }
    const int64_t* index = pointer<int64_t>(target_);
    std::vector<C> losses(static_cast<size_t>(loss != nullptr ? rows_ : 0));
    std::vector<C> bias_sums(static_cast<size_t>(dbias.defined() ? cols_ : 0), C(0));
    const int64_t chunk = attrs_.rows_at_once(rows_, cols_, LinearLossAttrs::kChunkLogits);
    const Tensor buffer = Tensor::empty({chunk, cols_}, {lower_, x_.device()});
    // A 16-bit gradient of the weight is summed over chunks in f32 and rounded once.
    Tensor weight_sum = dweight;
    if (dweight.defined() && chunk < rows_ && is_low_precision(dweight.dtype()))
      weight_sum = Tensor::empty(dweight.sizes(), x_.device());
    if (dweight.defined() && rows_ == 0) dweight.fill_(0);
    for (int64_t at = 0; at < rows_; at += chunk) {
      const int64_t n = std::min(chunk, rows_ - at);
      const Tensor x = x_.slice(0, {at, at + n}).to(lower_);
      Tensor logits = buffer.slice(0, {0, n});
      product(&linear_kernel, {&x, &weight_, &bias_}, logits);
      T* data = pointer<T>(logits);
      parallel_for(n, loss_grain(cols_), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          T* row = data + r * cols_;
          const int64_t target = index[at + r];
          const C lse = of_row.logsumexp(row);
          if (loss != nullptr) losses[static_cast<size_t>(at + r)] = of_row.loss(row, target, lse);
          if (any_grad)
            of_row.gradient(row, row, target, lse,
                            arriving[options_.reduction == 2 ? static_cast<size_t>(at + r) : 0] * scale);
        }
      });
      if (dx.defined()) {
        Tensor rows = dx.slice(0, {at, at + n});
        product(&matmul_kernel, {&logits, &weight_}, rows);
      }
      if (dweight.defined()) {
        const Tensor transposed = logits.transpose(0, 1);
        if (at == 0) product(&matmul_kernel, {&transposed, &x}, weight_sum);
        else add_product(transposed, x, weight_sum);
      }
      if (dbias.defined()) add_rows(data, n, bias_sums);
    }
    if (dweight.defined() && !weight_sum.is_same(dweight)) dweight.copy_(weight_sum);
    if (dbias.defined())
      visit_floating(dbias.dtype(), [&](auto tag) {
        using Out = typename decltype(tag)::type;
        Out* to = pointer<Out>(dbias);
        for (int64_t i = 0; i < cols_; ++i) to[i] = static_cast<Out>(bias_sums[static_cast<size_t>(i)]);
      });
    if (loss != nullptr) reduce_losses(options_, target_, losses, *loss);
  }

  // Sets `out` to the product of the operands, converted to the dtype of `out`.
  void product(KernelFn kernel, std::initializer_list<const Tensor*> operands, Tensor& out) const {
    const std::span<const Tensor* const> inputs(operands.begin(), operands.size());
    const DType given = inputs[0]->dtype();
    if (out.dtype() == given || (given == kBF16 && out.dtype() == kF32))
      return kernel({context_.op, inputs, {&out, 1}, {}, context_.where});
    Tensor narrow = Tensor::empty(out.sizes(), {given, out.device()});
    kernel({context_.op, inputs, {&narrow, 1}, {}, context_.where});
    out.copy_(narrow);
  }
  // Adds the product a b to `sum`.
  void add_product(const Tensor& a, const Tensor& b, Tensor& sum) const {
    const Tensor* operands[] = {&a, &b};
    const EpilogueCall onto{Epilogue::kAdd, &sum};
    if (product_absorbs({&onto.kind, 1}, a.dtype(), /*exact=*/false) && sum.numel() > 0 && b.numel() > 0)
      return matmul_kernel({context_.op, operands, {&sum, 1}, {}, context_.where, {&onto, 1}});
    Tensor part = Tensor::empty(sum.sizes(), {a.dtype(), sum.device()});
    product(&matmul_kernel, {&a, &b}, part);
    sum.add_(part.to(sum.dtype()));
  }
  // Adds the n rows of `data` to `sums`, in order, so the sums do not depend on the chunks.
  template <class T, class C> void add_rows(const T* data, int64_t n, std::vector<C>& sums) const {
    parallel_for(cols_, std::max<int64_t>(64, kElementwiseGrain / std::max<int64_t>(n, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = 0; r < n; ++r)
                     for (int64_t i = begin; i < end; ++i)
                       sums[static_cast<size_t>(i)] += static_cast<C>(data[r * cols_ + i]);
                 });
  }

  const KernelContext& context_;
  LossOptions options_;
  LinearLossAttrs attrs_;
  Tensor x_;
  DType lower_;  // dtype of the products and the logits
  Tensor weight_, bias_, target_;
  int64_t rows_, cols_;
};

}  // namespace

void linear_cross_entropy_kernel(const KernelContext& context) {
  const ops::LinearLossScope scope;
  ops::count_gradients(context);
  Head(context, 0)
      .walk({}, &context.out(0), ops::wanted_gradient(context, 0, 1), ops::wanted_gradient(context, 1, 1),
            ops::wanted_gradient(context, 2, 1));
}

void linear_cross_entropy_grad_kernel(const KernelContext& context) {
  const ops::LinearLossScope scope;
  Head(context, 1)
      .walk(context.in(0), nullptr, ops::wanted_gradient(context, 0, 0), ops::wanted_gradient(context, 1, 0),
            ops::wanted_gradient(context, 2, 0));
}

void scale_kernel(const KernelContext& context) {
  const ops::LinearLossScope scope;
  bool is_one = false;
  visit_floating(context.in(1).dtype(),
                 [&](auto tag) { is_one = *pointer<typename decltype(tag)::type>(context.in(1)) == 1; });
  if (!is_one) context.out().mul_(context.in(1));
}

}  // namespace rondo::cpu
