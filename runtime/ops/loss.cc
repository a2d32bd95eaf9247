// Losses.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/linear_loss.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

namespace {

void decompose_cross_entropy_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor &target = in[2], logits = in[1].to(compute_dtype(in[1].dtype())), grad = in[0].to(logits.dtype());
  const int64_t n = logits.sizes()[0], V = logits.sizes()[1];
  const bool mean = attrs.ints[1] == static_cast<int64_t>(Reduction::kMean);
  // Scalars are rounded as in the kernel.
  const auto rounded = [&](SymFloat value) { return logits.dtype() == kF64 ? value : to_f32(value); };
  const SymFloat smoothing = rounded(attrs.floats[0]);
  const SymFloat share = rounded(smoothing * rounded(1.0 / static_cast<double>(V)));
  const Tensor counts = not_equal(target, attrs.ints[0]);
  Tensor weight = grad;
  if (mean) weight = grad * (1.0 / sum(counts.to(logits.dtype())));
  if (weight.rank() == 1) weight = reshape(weight, {n, 1});
  const Tensor p = exp(logits - reshape(in[3], {n, 1})) + -share;
  const Tensor hit = equal(Tensor::arange(V, {kI64, target.device()}), reshape(target, {n, 1}));
  const Tensor dx = where(hit, p + -rounded(1.0 - smoothing), p) * weight;
  out[0] = where(reshape(counts, {n, 1}), dx, 0.0).to(in[1].dtype());
}

}  // namespace

// Inputs grad, logits, target, logsumexp; attributes as cross_entropy.
constexpr OpDef kCrossEntropyGrad = {
    .name = "cross_entropy_grad",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          c.require_floating(1);
          c.output(0, c.dtype(1), c.sizes(1));
        },
    .host = {&cpu::cross_entropy_grad_kernel},
    .decompose = &decompose_cross_entropy_grad,
    .reuses = 1,
    .fuse_parts = false,
    .checks = true,
};

// ints: {ignore_index, reduction}; floats: {label_smoothing}. Outputs the loss, and logsumexp (N).
constexpr OpDef kCrossEntropy = {
    .name = "cross_entropy",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          if (c.sizes(0).rank() != 2)
            c.fail(c.sizes(0).rank() == 4
                       ? "logits must have shape (N, V); the loss of pixels (B, C, H, W) is pixel_cross_entropy "
                         "(ops/pixel_loss.h)"
                       : "logits must have shape (N, V); for (B, T, V) give logits.reshape({-1, V}) and "
                         "target.reshape({-1})");
          if (c.dtype(1) != kI64 || !(c.sizes(1) == Dims{c.sizes(0)[0]}))
            c.fail("target must be i64 or i32 of shape (N)");
          c.output(0, c.dtype(0), c.integer(1) == static_cast<int>(Reduction::kNone) ? c.sizes(1) : Dims());
          c.output(1, compute_dtype(c.dtype(0)), c.sizes(1));
        },
    .host = {&cpu::cross_entropy_kernel},
    .grad =
        [](const GradContext& g) {
          Tensor grad;
          if (g.grad_out(0).defined())
            grad = call(kCrossEntropyGrad, {g.grad_out(0), g.input(0), g.input(1), g.output(1)}, g.attrs());
          if (g.grad_out(1).defined()) {  // second derivatives only: d logsumexp / d logits is the softmax
            const Dims column = {g.input_sizes(0)[0], 1};
            const Tensor logits = g.input(0).to(g.output(1).dtype());
            const Tensor more = exp(logits - reshape(g.output(1), column)) * reshape(g.grad_out(1), column);
            grad = grad.defined() ? grad + more.to(grad.dtype()) : more.to(g.input_dtype(0));
          }
          g.set(0, grad);
        },
    .checks = true,
};

namespace {

// ---- A linear layer and its cross-entropy, without whole logits

constexpr int kOperands = 3;  // x, weight, bias

// Checks the operands x, weight, bias and target, which are the inputs from `first` on.
void require_head(InferContext& c, int first) {
  const int x = first, weight = first + 1, bias = first + 2, target = first + 3;
  c.require_floating(x);
  c.require_same_dtype(x, weight);
  if (c.sizes(x).rank() != 2 || c.sizes(weight).rank() != 2) c.fail("needs x (N, C) and weight (V, C)");
  if (c.sizes(x)[1] != c.sizes(weight)[1]) c.fail("x (N, C) and weight (V, C) differ in C");
  if (c.has(bias)) {
    c.require_same_dtype(x, bias);
    if (!(c.sizes(bias) == Dims{c.sizes(weight)[0]})) c.fail("bias must have shape (V)");
  }
  if (c.dtype(target) != kI64 || !(c.sizes(target) == Dims{c.sizes(x)[0]}))
    c.fail("target must be i64 or i32 of shape (N)");
}
// Infers the gradients of x, weight and bias as outputs from `output` on. Gradients that are not wanted have no
// elements.
void infer_gradients(InferContext& c, int first, int output) {
  c.require_floating(first);
  for (int i = 0; i < kOperands; ++i) {
    const bool wanted = LinearLossAttrs(c.attrs()).wants(i);
    c.output(output + i, c.dtype(first), wanted ? c.sizes(first + i) : Dims{0});
  }
}

Attrs cross_entropy_attrs(const Attrs& attrs) {
  return {.ints = {attrs.ints[0], attrs.ints[1]}, .floats = attrs.floats};
}

// The linear layer of the loss, if the loss runs as several ops. It computes all logits at once.
struct WholeHead {
  Tensor x, weight, bias;  // in the dtype of the products
  Tensor logits;           // in the dtype of the given x
  WholeHead(std::span<const Tensor> in, const Attrs& attrs) {
    const DType given = in[0].dtype(), lower = LinearLossAttrs(attrs).dtype_of_products(given);
    x = in[0].to(lower).contiguous();  // a product may sum in another order if the layout is another
    weight = in[1].to(lower).contiguous();
    bias = in[2].defined() ? in[2].to(lower) : Tensor();
    logits = linear(x, weight, bias).to(given);
  }
};

void decompose_linear_cross_entropy_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const WholeHead head(in.subspan(1), attrs);
  const Attrs plain = cross_entropy_attrs(attrs);
  Tensor loss[2];
  call(kCrossEntropy, {head.logits, in[4]}, plain, loss);
  const Tensor dlogits = call(kCrossEntropyGrad, {in[0], head.logits, in[4], loss[1]}, plain).to(head.x.dtype());
  const DType given = in[1].dtype();
  for (int i = 0; i < kOperands; ++i) {
    if (!LinearLossAttrs(attrs).wants(i)) out[i] = Tensor::empty({0}, {given, in[1].device()});
    else if (i == 0) out[i] = matmul(dlogits, head.weight).to(given);
    else if (i == 1) out[i] = matmul(transpose(dlogits, 0, 1), head.x).to(given);
    else out[i] = sum(dlogits, {0}).to(given);
  }
}

void decompose_linear_cross_entropy(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  Tensor loss[2];
  call(kCrossEntropy, {WholeHead(in, attrs).logits, in[3]}, cross_entropy_attrs(attrs), loss);
  out[0] = loss[0];
  const Tensor all[] = {Tensor::ones(out[0].sizes(), {out[0].dtype(), out[0].device()}), in[0], in[1], in[2], in[3]};
  decompose_linear_cross_entropy_grad(all, attrs, out.subspan(1));
}

// Adds to `grads` the contribution of gradients that arrive at the saved gradients. Let P be the gradient of the loss
// by the logits: dx = P W, dweight = P^T x and dbias = P^T 1. Q is the gradient that arrives at P through dx, dweight
// and dbias. In each row, the derivative of P by the logits is weight (diag(p) - p p^T), where p is the softmax and
// `weight` is the row's weight in the loss.
void add_second_order(const GradContext& g, Tensor (&grads)[kOperands]) {
  const Tensor in[] = {g.input(0), g.input(1), g.input(2), g.input(3)};
  const WholeHead head(in, g.attrs());
  const DType lower = head.x.dtype();
  const Attrs plain = cross_entropy_attrs(g.attrs());
  const auto product = [&](const Tensor& a, const Tensor& b) {
    return matmul(a.to(lower).contiguous(), b.to(lower).contiguous());
  };
  const auto flipped = [](const Tensor& t) { return transpose(t, 0, 1); };
  const auto add = [](Tensor& total, const Tensor& part) { total = total.defined() ? total + part : part; };
  const auto arrived = [&](int i) { return LinearLossAttrs(g.attrs()).wants(i) ? g.grad_out(1 + i) : Tensor(); };
  const Tensor at_dx = arrived(0), at_dweight = arrived(1), at_dbias = arrived(2);

  Tensor loss[2], Q;
  call(kCrossEntropy, {head.logits, in[3]}, plain, loss);
  if (at_dx.defined()) add(Q, product(at_dx, flipped(head.weight)));
  if (at_dweight.defined()) add(Q, product(head.x, flipped(at_dweight)));
  if (at_dbias.defined()) add(Q, expand(at_dbias.to(lower), head.logits.sizes()));
  if (!Q.defined()) return;
  const Dims column = {head.logits.sizes()[0], 1};
  const DType wide = loss[1].dtype();
  Tensor weight = not_equal(in[3], plain.ints[0]).to(wide);
  if (plain.ints[1] == static_cast<int64_t>(Reduction::kMean)) weight = weight / sum(weight);
  const Tensor p = exp(head.logits.to(wide) - reshape(loss[1], column)),
               weighted = p * Q.to(wide) * reshape(weight, column);
  const Tensor R = weighted - p * sum(weighted, {1}, true);
  const Tensor one = Tensor::ones({}, {head.logits.dtype(), head.logits.device()});
  const Tensor P = call(kCrossEntropyGrad, {one, head.logits, in[3], loss[1]}, plain);
  if (g.needs(0)) {
    add(grads[0], product(R, head.weight).to(g.input_dtype(0)));
    if (at_dweight.defined()) add(grads[0], product(P, at_dweight).to(g.input_dtype(0)));
  }
  if (g.needs(1)) {
    add(grads[1], product(flipped(R), head.x).to(g.input_dtype(1)));
    if (at_dx.defined()) add(grads[1], product(flipped(P), at_dx).to(g.input_dtype(1)));
  }
  if (g.needs(2)) add(grads[2], sum(R, {0}).to(g.input_dtype(2)));
}

}  // namespace

// Inputs total, factor (a scalar of its dtype): the total times the factor, in place. The factor stays on its device: a
// factor of 1, the usual one of a loss, costs no pass over the total.
constexpr OpDef kScale = {
    .name = "scale",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst | kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          c.require_same_dtype(0, 1);
          if (!c.sizes(1).empty()) c.fail("the factor must be a scalar");
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&cpu::scale_kernel},
    .grad =
        [](const GradContext& g) {
          if (g.needs(0)) g.set(0, g.grad_out() * g.input(1));
          if (g.needs(1)) g.set(1, sum(g.grad_out() * g.input(0)));
        },
    .overwrites = 0,
};

namespace {

// Returns a saved gradient of the loss, times the gradient that arrives at the loss. It is scaled in place if possible,
// because the gradient of an output layer is as large as the layer.
Tensor scaled(const Tensor& saved, const Tensor& grad) {
  if (!autograd::may_overwrite_saved(saved)) return saved * grad;
  if (!autograd::is_known_one(grad)) call_in_place(kScale, {saved, grad});
  return saved;
}

}  // namespace

// Inputs grad, x, weight, bias, target; outputs dx, dweight, dbias. Attributes: LinearLossAttrs.
constexpr OpDef kLinearCrossEntropyGrad = {
    .name = "linear_cross_entropy_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = kOperands,
    .infer = [](InferContext& c) { infer_gradients(c, 1, 0); },
    .host = {&cpu::linear_cross_entropy_grad_kernel},
    .decompose = &decompose_linear_cross_entropy_grad,
    .fuse_parts = false,
    .checks = true,
};

// Inputs x, weight, bias, target; outputs the loss, and its gradients: those that are wanted (LinearLossAttrs). The
// forward has the logits, so computing the gradients in the forward costs two products. A backward would need a third
// product to compute the logits again: a third of the head's time in training. The gradient that arrives at a scalar
// loss only scales these gradients, as in Hsu et al., "Liger Kernel" (2024). In two cases the backward computes the
// gradients: for kNone, where scaling is not enough, and for f16, where a loss scale must be applied before gradients
// are rounded.
constexpr OpDef kLinearCrossEntropy = {
    .name = "linear_cross_entropy",
    .kind = OpKind::kOpaque,
    .n_outputs = 1 + kOperands,
    .saved = {.inputs = 0xF, .outputs = 0xE},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          require_head(c, 0);
          const bool per_row = c.integer(1) == static_cast<int64_t>(Reduction::kNone);
          if (per_row && LinearLossAttrs(c.attrs()).wanted != 0) c.fail("losses of rows have no gradient of their own");
          c.output(0, c.dtype(0), per_row ? c.sizes(3) : Dims());
          infer_gradients(c, 0, 1);
        },
    .host = {&cpu::linear_cross_entropy_kernel},
    .decompose = &decompose_linear_cross_entropy,
    .grad =
        [](const GradContext& g) {
          Attrs attrs = g.attrs();
          int64_t needed = 0;
          for (int i = 0; i < kOperands; ++i) needed |= static_cast<int64_t>(g.needs(i)) << i;
          Tensor grads[kOperands];
          if (g.grad_out(0).defined() && !grad_enabled() && (needed & ~LinearLossAttrs(attrs).wanted) == 0) {
            for (int i = 0; i < kOperands; ++i)
              if (g.needs(i)) grads[i] = scaled(g.output(1 + i), g.grad_out(0));
          } else if (g.grad_out(0).defined()) {
            attrs.ints[4] = needed;
            call(kLinearCrossEntropyGrad, {g.grad_out(0), g.input(0), g.input(1), g.input(2), g.input(3)}, attrs,
                 grads);
          }
          if (g.grad_out(1).defined() || g.grad_out(2).defined() || g.grad_out(3).defined()) add_second_order(g, grads);
          for (int i = 0; i < kOperands; ++i)
            if (g.needs(i)) g.set(i, grads[i]);
        },
    .fuse_parts = false,
    .checks = true,
};

namespace {

void require_smoothing(const char* op, double smoothing, std::source_location where) {
  if (!(smoothing >= 0 && smoothing <= 1)) throw_op_error(op, "label_smoothing must lie in [0, 1]", where);
}

}  // namespace

Tensor linear_cross_entropy(TensorArg x, TensorArg weight, TensorArg bias, TensorArg target,
                            LinearCrossEntropyOptions options) {
  require_smoothing("linear_cross_entropy", options.label_smoothing, x.where);
  if (options.chunk_rows < 0) throw_op_error("linear_cross_entropy", "chunk_rows must not be negative", x.where);
  require_defined("linear_cross_entropy", x);
  const std::optional<DType> autocast = x.tensor.dtype() == kF64 ? std::nullopt : amp::autocast_dtype();
  int64_t wanted = 0;
  const Tensor* const operands[kOperands] = {&x.tensor, &weight.tensor, &bias.tensor};
  for (int i = 0; i < kOperands && grad_enabled(); ++i)
    wanted |= static_cast<int64_t>(operands[i]->defined() && operands[i]->requires_grad()) << i;
  if (options.reduction == Reduction::kNone || autocast.value_or(x.tensor.dtype()) == kF16) wanted = 0;
  const Tensor at = index_operand("linear_cross_entropy", target);
  Tensor outputs[1 + kOperands];
  call(kLinearCrossEntropy, {x, weight, bias, {at, target.where, target.tensor.dtype()}},
       {.ints = {options.ignore_index, static_cast<int64_t>(options.reduction), options.chunk_rows,
                 autocast ? static_cast<int64_t>(*autocast) : -1, wanted},
        .floats = {options.label_smoothing}},
       outputs);
  return outputs[0];
}

Tensor cross_entropy(TensorArg logits, TensorArg target, CrossEntropyOptions options) {
  require_smoothing("cross_entropy", options.label_smoothing, logits.where);
  const Tensor at = index_operand("cross_entropy", target);
  Tensor outputs[2];
  call(kCrossEntropy, {logits, {at, target.where, target.tensor.dtype()}},
       {.ints = {options.ignore_index, static_cast<int64_t>(options.reduction)}, .floats = {options.label_smoothing}},
       outputs);
  return outputs[0];
}

constexpr OpList kLossOps = {&kCrossEntropy, &kCrossEntropyGrad, &kLinearCrossEntropy, &kLinearCrossEntropyGrad,
                             &kScale};

}  // namespace rondo::ops
