// Scaled dot-product attention.
//
// Note [Dropped weights]. With dropout both ops have one more input, a random state (Note [Random state]), and the
//   output is dropout(softmax(scores)) v. Without dropout the calls have no state input. The mask is not stored: the
//   gradient draws it again from the same state. The weight of query i of head h of batch b for key j uses number j % 4
//   of the four random numbers of Philox counter ((b H + h) Tq + i) ceil(Tk / 4) + j / 4. Each query begins with a
//   fresh counter, so kernels draw four neighbouring keys at once for any Tk, and the mask equals the one that the op
//   dropout draws for a tensor (B, H, Tq, Tk rounded up to 4). The logsumexp is computed before dropout, from all
//   scores. The gradient of the weights before dropout is their gradient after dropout times the mask. The sum of this
//   gradient over keys, weighted by the weights, still equals the sum of grad * out over D.
#include <cmath>
#include <limits>

#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::ops {
namespace {

// Returns the strides of a tensor (B, H, T, D) that lies in memory as (B, T, H, D). With them, merging the heads is a
// view.
Dims heads_inside(const Dims& s) { return {s[2] * s[1] * s[3], s[3], s[1] * s[3], 1}; }

void check_shapes(const InferContext& c) {
  for (int i = 0; i < 3; ++i)
    if (c.sizes(i).rank() != 4) c.fail("q, k and v must have shape (B, H, T, D)");
  const Dims &q = c.sizes(0), &k = c.sizes(1);
  if (!(k == c.sizes(2))) c.fail("k and v must have the same shape");
  if (q[0] != k[0] || q[3] != k[3]) c.fail("q and k must agree in batch and head dimension");
  if (k[1] == 0 || q[1] % k[1] != 0) c.fail("the heads of q must be a multiple of those of k");
  if (!c.has(3)) return;
  Dims mask = c.sizes(3);
  if (c.dtype(3) == kI64 && mask.rank() > 0 && mask.back() != 1 && mask.back() != 2)
    c.fail("a mask of keys must have one column (the first key) or two (and the end): (B, H, Tq, 2)");
  if (c.dtype(3) == kI64 && mask.rank() > 0) mask[mask.rank() - 1] = 1;
  Dims full;
  const Dims scores = {q[0], q[1], q[2], k[2]};
  if (!broadcast_shapes(mask, scores, full) || !(full == scores)) c.fail("mask does not broadcast to (B, H, Tq, Tk)");
}

void check_operands(InferContext& c) {
  check_shapes(c);
  for (int i = 0; i < 3; ++i) {
    c.require_floating(i);
    c.require_same_dtype(0, i);
  }
  if (c.n_inputs() > 4) check_dropout(c, 4, c.scalar(1));
  if (c.has(3) && c.dtype(3) != kBool && c.dtype(3) != kI64 && c.dtype(3) != c.dtype(0))
    c.fail("mask must be bool, i64 or i32 (the keys of each query), or have the dtype of q");
}

// Repeats each head of k or v for every query head of its group: (B, heads, T, D).
Tensor repeat_heads(const Tensor& t, int64_t heads) {
  const Dims s = t.sizes();
  if (s[1] == heads) return t;
  const int64_t groups = heads / s[1];
  return reshape(expand(unsqueeze(t, 2), {s[0], s[1], groups, s[2], s[3]}), {s[0], heads, s[2], s[3]});
}

// Converts a mask of keys, i64 (..., 1 or 2), to a bool mask (..., keys).
Tensor allowed_keys(const Tensor& mask, int64_t keys) {
  const Tensor key = Tensor::arange(keys, {kI64, mask.device()});
  if (mask.rank() == 0 || mask.sizes().back() == 1) return less_equal(mask, key);
  return bitwise_and(less_equal(slice(mask, -1, {0, 1}), key), less(key, slice(mask, -1, {1, 2})));
}

// Computes scale q k^T + mask and stores all of these scores: for the reference implementation and for second
// derivatives.
Tensor plain_scores(const Tensor& q, const Tensor& k, const Tensor& mask, bool causal, SymFloat scale) {
  Tensor scores = matmul(q, transpose(repeat_heads(k, q.sizes()[1]), -1, -2)) * scale;
  const double lowest = -std::numeric_limits<double>::infinity();
  const TensorOptions counts{kI64, q.device()};
  if (mask.defined() && mask.dtype() == kI64) scores = where(allowed_keys(mask, k.sizes()[2]), scores, lowest);
  else if (mask.defined()) scores = mask.dtype() == kBool ? where(mask, scores, lowest) : scores + mask;
  if (causal) {
    const Tensor rows = unsqueeze(Tensor::arange(q.sizes()[2], counts), 1);
    const Tensor cols = unsqueeze(Tensor::arange(k.sizes()[2], counts), 0);
    scores = where(less_equal(cols, rows), scores, lowest);
  }
  return scores;
}

// Returns the factors by which dropout multiplies the attention weights (B, H, Tq, Tk). Note [Dropped weights].
Tensor weight_factors(const Tensor& q, const Tensor& k, const Tensor& state, int64_t increment, SymFloat p) {
  const int64_t keys = k.sizes()[2];
  const Tensor ones = Tensor::ones({q.sizes()[0], q.sizes()[1], q.sizes()[2], (keys + 3) / 4 * 4},
                                   {q.dtype(), q.device()});
  return slice(call(kDropout, {ones, state}, dropout_attrs(p, increment)), -1, {0, keys});
}

// Replaces -inf in `logits` (a maximum or a logsumexp) by 0.
Tensor finite(const Tensor& logits) {
  return where(equal(logits, -std::numeric_limits<double>::infinity()), 0.0, logits);
}

// Computes the gradient of repeat_heads: sums over the query heads of each group.
Tensor sum_heads(const Tensor& t, int64_t heads) {
  const Dims s = t.sizes();
  if (s[1] == heads) return t;
  return sum(reshape(t, {s[0], heads, s[1] / heads, s[2], s[3]}), {2});
}

// Attention in plain ops, for second derivatives and for the decomposition of attention_grad. It computes in the
// compute dtype and stores every weight.
struct PlainAttention {
  Tensor q, k, v, mask, logsumexp, state;
  Attrs attrs;
  PlainAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& logsumexp,
                 const Tensor& state, const Attrs& attrs)
      : q(wide(q)), k(wide(k)), v(wide(v)), mask(mask), logsumexp(logsumexp), state(state), attrs(attrs) {
    if (mask.defined() && is_floating(mask.dtype())) this->mask = wide(mask);
  }
  static Tensor wide(const Tensor& t) { return t.to(compute_dtype(t.dtype())); }

  // Returns the attention weights exp(scores - logsumexp), (B, H, Tq, Tk). They are 0 for a query that may attend to no
  // key; its logsumexp is -inf. If all scores of a row are masked with the lowest finite number, logsumexp is so large
  // that rounding loses log(sum) (cpu/attention.cc, load_rescale), and exp(scores - logsumexp) is not normalised. For
  // rows with a large logsumexp, the softmax is computed again from the scores.
  Tensor weights() const {
    const Tensor scores = plain_scores(q, k, mask, attrs.ints[0] != 0, attrs.floats[0]);
    const Tensor given = unsqueeze(finite(logsumexp), -1), is_small = less(abs(given), 256.0);
    // The greatest score cancels in the quotient, so it needs no gradient.
    const Tensor greatest = finite(max(scores.detach(), {-1}, true));
    const Tensor all = exp(scores - where(is_small, given, greatest));
    return all / where(is_small, 1.0, sum(all, {-1}, true));
  }
  // Applies dropout to `weights`, or to their gradient.
  Tensor dropped(const Tensor& weights) const {
    return state.defined() ? weights * weight_factors(q, k, state, attrs.ints[1], attrs.floats[1]) : weights;
  }
  // Computes dq and dk from the gradient of the scores, which include the factor `scale`.
  void scores_grad(const Tensor& d_scores, Tensor& dq, Tensor& dk) const {
    const Tensor scaled = d_scores * attrs.floats[0];
    dq = matmul(scaled, repeat_heads(k, q.sizes()[1]));
    dk = sum_heads(matmul(transpose(scaled, -1, -2), q), k.sizes()[1]);
  }
};

// Decomposes attention_grad, and attention_scores_grad, which has one more output: the gradient of the masked scores.
void decompose_attention_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const PlainAttention a(in[3], in[4], in[5], in[6], in[2], in.size() > 7 ? in[7] : Tensor(), attrs);
  const Tensor grad = PlainAttention::wide(in[0]), weights = a.weights();
  const Tensor d_weights = matmul(grad, transpose(repeat_heads(a.v, a.q.sizes()[1]), -1, -2));
  const Tensor delta = sum(grad * PlainAttention::wide(in[1]), {-1}, true);
  const Tensor d_scores = weights * (a.dropped(d_weights) - delta);
  Tensor dq, dk;
  a.scores_grad(d_scores, dq, dk);
  if (out.size() > 3) out[3] = d_scores;
  out[0] = dq.to(in[3].dtype());
  out[1] = dk.to(in[4].dtype());
  out[2] = sum_heads(matmul(transpose(a.dropped(weights), -1, -2), grad), a.v.sizes()[1]).to(in[5].dtype());
}

void infer_attention_grad(InferContext& c) {
  c.require_floating(3);
  for (int i = 0; i < 3; ++i) c.strided_output(i, c.dtype(3 + i), c.sizes(3 + i), heads_inside(c.sizes(3 + i)));
}

}  // namespace

// Inputs grad, out, logsumexp, q, k, v, mask and, with dropout, state; outputs dq, dk, dv. The attributes are those of
// kAttention.
constexpr OpDef kAttentionGrad = {
    .name = "attention_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer = &infer_attention_grad,
    .host = {&cpu::attention_grad_kernel},
    .decompose = &decompose_attention_grad,
    .strided_outputs = true,
    .fuse_parts = false,
};
// As attention_grad, with one more output: the gradient of the masked scores (B, H, Tq, Tk), in the compute dtype.
// Summed over broadcast dimensions, it is the gradient of an additive mask. Every element of it is stored, so this op
// serves only additive masks that need a gradient.
constexpr OpDef kAttentionScoresGrad = {
    .name = "attention_scores_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 4,
    .infer =
        [](InferContext& c) {
          infer_attention_grad(c);
          const Dims &q = c.sizes(3), &k = c.sizes(4);
          c.output(3, compute_dtype(c.dtype(3)), {q[0], q[1], q[2], k[2]});
        },
    .host = {&cpu::attention_grad_kernel},
    .decompose = &decompose_attention_grad,
    .strided_outputs = true,
    .fuse_parts = false,
};

namespace {

void decompose_attention(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor mask = in.size() > 3 ? in[3] : Tensor();
  PlainAttention a(in[0], in[1], in[2], mask, {}, in.size() > 4 ? in[4] : Tensor(), attrs);
  const Tensor scores = plain_scores(a.q, a.k, a.mask, attrs.ints[0] != 0, attrs.floats[0]);
  const Tensor shift = finite(max(scores, {-1}, true));
  a.logsumexp = squeeze(log(sum(exp(scores - shift), {-1}, true)) + shift, -1);
  out[0] = matmul(a.dropped(a.weights()), repeat_heads(a.v, a.q.sizes()[1])).to(in[0].dtype());
  out[1] = a.logsumexp;
}

}  // namespace

// ints: {causal}; floats: {scale}. Inputs q, k, v, mask; outputs out, and logsumexp (B, H, Tq). With dropout there is
// one more input, state i64 (2), and the attributes are ints {causal, increment} and floats {scale, p}: Note [Dropped
// weights].
constexpr OpDef kAttention = {
    .name = "attention",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.inputs = 0x1F, .outputs = kFirst | kSecond},
    .amp = AmpPolicy::kLower,
    .infer =
        [](InferContext& c) {
          check_operands(c);
          const Dims& q = c.sizes(0);
          c.strided_output(0, c.dtype(0), q, heads_inside(q));
          c.output(1, compute_dtype(c.dtype(0)), {q[0], q[1], q[2]});
        },
    .host = {&cpu::attention_kernel},
    .decompose = &decompose_attention,
    .grad =
        [](const GradContext& g) {
          Tensor grads[4];
          const bool of_mask = g.needs(3);
          const Tensor state = g.n_inputs() > 4 ? g.input(4) : Tensor();
          if (g.grad_out(0).defined()) {
            const TensorArg operands[] = {g.grad_out(0), g.output(0), g.output(1), g.input(0),
                                          g.input(1),    g.input(2),  g.input(3),  state};
            call(of_mask ? kAttentionScoresGrad : kAttentionGrad, {operands, state.defined() ? size_t{8} : size_t{7}},
                 g.attrs(), {grads, of_mask ? size_t{4} : size_t{3}});
          }
          if (g.grad_out(1).defined()) {  // second derivatives only: d logsumexp / d scores is the softmax
            const PlainAttention a(g.input(0), g.input(1), g.input(2), g.input(3), g.output(1), state, g.attrs());
            const Tensor d_scores = a.weights() * unsqueeze(g.grad_out(1), -1);
            Tensor more[2];
            a.scores_grad(d_scores, more[0], more[1]);
            for (int i = 0; i < 2; ++i) {
              const Tensor part = more[i].to(g.input_dtype(i));
              grads[i] = grads[i].defined() ? grads[i] + part : part;
            }
            if (of_mask) grads[3] = grads[3].defined() ? grads[3] + d_scores : d_scores;
          }
          for (int i = 0; i < 3; ++i)
            if (g.needs(i)) g.set(i, grads[i]);
          if (of_mask) g.set_reduced(3, grads[3]);
        },
    .fuse_parts = false,
};

namespace {
Tensor with_i64_keys(const char* op, const Tensor& mask, std::source_location where) {
  return mask.defined() && mask.dtype() == kI32 ? index_operand(op, {mask, where}) : mask;
}
}  // namespace

Tensor scaled_dot_product_attention(TensorArg q, TensorArg k, TensorArg v, const Tensor& given_mask,
                                    AttentionOptions options) {
  const FloatingPointScope floating_point;
  const Tensor mask = with_i64_keys("attention", given_mask, q.where);
  if (q.tensor.defined() && q.tensor.rank() == 4 && !options.scale)
    options.scale = 1.0 / std::sqrt(static_cast<double>(q.tensor.sizes()[3]));
  const double scale = options.scale.value_or(1.0);
  Tensor outputs[2];
  if (options.dropout == 0) {
    call(kAttention, {q, k, v, {mask, q.where}}, {.ints = {options.causal}, .floats = {scale}}, outputs);
    return outputs[0];
  }
  require_defined("attention", q);
  require_probability("attention", options.dropout, q.where);
  const RandomState random = next_random_state(options.generator ? *options.generator : default_generator(),
                                               q.tensor.device());
  call(kAttention, {q, k, v, {mask, q.where}, {random.state, q.where}},
       {.ints = {options.causal, random.increment}, .floats = {scale, options.dropout}}, outputs);
  return outputs[0];
}

Tensor plain_attention(TensorArg q, TensorArg k, TensorArg v, const Tensor& given_mask, AttentionOptions options) {
  const FloatingPointScope floating_point;
  const Tensor mask = with_i64_keys("plain_attention", given_mask, q.where);
  for (const TensorArg& operand : {q, k, v}) require_defined("plain_attention", operand);
  require_probability("plain_attention", options.dropout, q.where);
  const Tensor* const operands[] = {&q.tensor, &k.tensor, &v.tensor, &mask};
  const Attrs none;
  check_shapes(InferContext(kAttention, operands, none, q.where));
  if (mask.defined() && mask.dtype() != kBool && mask.dtype() != kI64 && !is_floating(mask.dtype()))
    throw_op_error("plain_attention", "mask must be bool, i64 or i32 (the keys of each query), or floats", q.where);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.tensor.sizes()[3])));
  const Tensor scores = plain_scores(q.tensor, k.tensor, mask, options.causal, scale);
  // A query that may attend to nothing gets 0, as in scaled_dot_product_attention.
  const Tensor some = any(not_equal(scores, -std::numeric_limits<double>::infinity()), {-1}, true);
  Tensor weights = where(some, softmax(where(some, scores, 0.0)), 0.0);
  if (options.dropout != 0) {
    const RandomState random = next_random_state(options.generator ? *options.generator : default_generator(),
                                                 q.tensor.device());
    weights = weights * weight_factors(q.tensor, k.tensor, random.state, random.increment, options.dropout);
  }
  return matmul(weights, repeat_heads(v.tensor, q.tensor.sizes()[1]));
}

constexpr OpList kAttentionOps = {&kAttention, &kAttentionGrad, &kAttentionScoresGrad};

}  // namespace rondo::ops
