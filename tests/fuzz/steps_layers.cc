// Reductions, products, norms, attention, embeddings, losses, dropout.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

const Dims& sizes_of(Draft& draft, ValueId id) { return draft.tensor(id).sizes(); }

// ints: keepdim, then the dimensions (none: all).
bool pick_reduction(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(2)};
  for (int d = 0; d < sizes_of(draft, step.in[0]).rank(); ++d)
    if (draft.random.chance(0.45)) step.ints.push_back(d);
  return true;
}
Dims dims_of(const Step& step) { return Dims(std::span<const int64_t>(step.ints).subspan(1)); }

bool pick_last_dim(Draft& draft, Step& step) {
  step.in = {draft.floating(1)};
  return step.in[0] != kNone && sizes_of(draft, step.in[0]).back() > 0;
}
bool pick_softmax(Draft& draft, Step& step) {
  if (!pick_last_dim(draft, step)) return false;
  const int64_t rank = sizes_of(draft, step.in[0]).rank();
  step.ints = {draft.random.chance(0.7) ? rank - 1 : draft.random.below(rank)};
  return true;
}
// Weights of the last dimension's size.
bool pick_norm(Draft& draft, Step& step, int weights) {
  if (!pick_last_dim(draft, step)) return false;
  constexpr double kEps[] = {1e-5, 1e-6, 0.1};
  step.scalar = kEps[draft.random.below(3)];
  const DType dtype = draft.tensor(step.in[0]).dtype();
  const int64_t width = draft.coded(sizes_of(draft, step.in[0])).back();
  for (int i = 0; i < weights; ++i) step.in.push_back(draft.leaf(dtype, {width}, true));
  return true;
}

bool pick_linear(Draft& draft, Step& step) {
  if (!pick_last_dim(draft, step)) return false;
  const Tensor x = draft.tensor(step.in[0]);
  const int64_t in = draft.coded(x.sizes()).back(), out = draft.random.pick<int64_t>({1, 2, 3, 4, 6, 8, 17});
  step.in.push_back(draft.leaf(x.dtype(), {out, in}, true));
  step.in.push_back(draft.random.chance(0.7) ? draft.leaf(x.dtype(), {out}, true) : kNone);
  return true;
}
// With a value that fits, or with a leaf that is made to.
bool pick_matmul(Draft& draft, Step& step) {
  const ValueId a = draft.floating(2);
  if (a == kNone) return false;
  const Tensor left = draft.tensor(a);
  const auto fits = [&](const Tensor& t) {
    return t.dtype() == left.dtype() && t.rank() >= 2 && t.size(-2) == left.size(-1) && t.rank() <= left.rank();
  };
  ValueId b = draft.random.chance(0.6) ? draft.value(fits) : kNone;
  if (b == kNone) {
    const int64_t inner = draft.coded(left.sizes()).back();
    b = draft.leaf(left.dtype(), {inner, draft.random.pick<int64_t>({1, 2, 3, 5, 8})}, true);
  }
  step.in = {a, b};
  return true;
}
// x x^T: the same value on both sides.
bool pick_gram(Draft& draft, Step& step) {
  step.in = {draft.floating(2)};
  return step.in[0] != kNone && draft.tensor(step.in[0]).numel() < 400;
}
bool pick_attention(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.rank() == 4 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Tensor q = draft.tensor(step.in[0]);
  for (int i = 0; i < 2; ++i) {
    ValueId id = draft.value([&](const Tensor& t) { return t.dtype() == q.dtype() && t.sizes() == q.sizes(); });
    step.in.push_back(id);
  }
  step.ints = {draft.random.below(2)};
  return true;
}
// A mask that is added to the scores: one for all, or one for each example. It may require a gradient, as relative
// positions do. ints: {causal, plain}
bool pick_attention_mask(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) {
    return is_floating(t.dtype()) && t.rank() >= 2 && t.rank() <= 4 && t.numel() > 0 && t.size(-2) < 100;
  })};
  if (step.in[0] == kNone) return false;
  const Tensor x = draft.tensor(step.in[0]);
  const Dims sizes = draft.coded(x.sizes());
  const int64_t rows = sizes[sizes.rank() - 2];
  const bool for_each = x.rank() > 2 && draft.random.chance(0.4);
  step.in.push_back(draft.leaf(x.dtype(), for_each ? Dims{sizes[0], 1, rows, rows} : Dims{rows, rows}, true));
  step.ints = {draft.random.below(2), draft.random.below(3)};
  return true;
}
bool pick_embedding(Draft& draft, Step& step) {
  const ValueId weight = draft.random.chance(0.3) ? draft.value([](const Tensor& t) {
    return is_floating(t.dtype()) && t.rank() == 2 && t.size(0) > 0;
  })
                                                  : kNone;
  constexpr DType kDTypes[] = {kF32, kF32, kF64, kBF16};
  step.in = {weight != kNone
                 ? weight
                 : draft.leaf(kDTypes[draft.random.below(4)],
                              {draft.random.between(2, 9), draft.random.pick<int64_t>({1, 3, 4, 6})}, true)};
  if (draft.coded(sizes_of(draft, step.in[0]))[0] <= 0) return false;
  const std::vector<Dims> shapes = {{-1}, {-1, 3}, {4}, {2, 3}};
  step.in.push_back(draft.indices(draft.random.pick(shapes), sizes_of(draft, step.in[0])[0]));
  return true;
}
bool pick_cross_entropy(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.rank() == 2 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Dims sizes = draft.coded(sizes_of(draft, step.in[0]));
  if (sizes[1] < 0) return false;
  step.in.push_back(draft.indices({sizes[0]}, sizes[1]));
  step.ints = {draft.random.below(3)};
  step.scalar = draft.random.pick<double>({0, 0, 0.1});
  return true;
}
bool pick_rotary(Draft& draft, Step& step) {
  step.in = {draft.value(
      [](const Tensor& t) { return is_floating(t.dtype()) && t.rank() >= 2 && t.size(-1) % 2 == 0 && t.numel() > 0; })};
  step.ints = {draft.random.below(3)};
  return step.in[0] != kNone;
}
// ints: {groups}, which divide the channels.
bool pick_channel_norm(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.rank() >= 2 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Tensor x = draft.tensor(step.in[0]);
  const int64_t channels = draft.coded(x.sizes())[1];
  if (channels < 0) return false;
  for (int i = 0; i < 2; ++i)
    step.in.push_back(draft.random.chance(0.7) ? draft.leaf(x.dtype(), {channels}, true) : kNone);
  step.ints = {channels % 2 == 0 && draft.random.chance(0.5) ? 2 : draft.random.pick<int64_t>({1, channels})};
  step.scalar = draft.random.pick<double>({1e-5, 0.1});
  return true;
}
bool pick_dropout(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  step.scalar = draft.random.pick<double>({0.1, 0.5, 0.9});
  return step.in[0] != kNone;
}
bool pick_attention_dropout(Draft& draft, Step& step) {
  step.scalar = draft.random.pick<double>({0.1, 0.5, 1});
  return pick_attention(draft, step);
}
bool pick_convolution(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.rank() == 4 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Tensor x = draft.tensor(step.in[0]);
  const Dims sizes = draft.coded(x.sizes());
  if (sizes[1] < 0 || sizes[2] < 0 || sizes[3] < 0) return false;
  const int64_t padding = draft.random.between(0, 1), groups = sizes[1] % 2 == 0 && draft.random.chance(0.3) ? 2 : 1,
                kh = draft.random.between(1, std::min<int64_t>(3, sizes[2])),
                kw = draft.random.between(1, std::min<int64_t>(3, sizes[3])), out = draft.random.between(1, 4) * groups;
  step.in.push_back(draft.leaf(x.dtype(), {out, sizes[1] / groups, kh, kw}, true));
  step.in.push_back(draft.random.chance(0.5) ? draft.leaf(x.dtype(), {out}, true) : kNone);
  step.ints = {draft.random.between(1, 2), padding, groups};
  return true;
}

const StepKind kKinds[] = {
    {"sum", 6, &pick_reduction, [](Scene& s) { return Tensors{ops::sum(s.in[0], dims_of(s.step), s.n(0) != 0)}; }},
    {"mean", 5, &pick_reduction, [](Scene& s) { return Tensors{ops::mean(s.in[0], dims_of(s.step), s.n(0) != 0)}; }},
    {"max", 3, &pick_reduction, [](Scene& s) { return Tensors{ops::max(s.in[0], dims_of(s.step), s.n(0) != 0)}; }},
    {"min", 2, &pick_reduction, [](Scene& s) { return Tensors{ops::min(s.in[0], dims_of(s.step), s.n(0) != 0)}; }},
    {"var_mean", 1, &pick_reduction,
     [](Scene& s) {
       const auto [var, mean] = ops::var_mean(s.in[0], dims_of(s.step), 0.0, s.n(0) != 0);
       return Tensors{var, mean};
     }},
    {"any", 1, &pick_reduction,
     [](Scene& s) { return Tensors{ops::any(ops::greater(s.in[0], 0.5), dims_of(s.step), s.n(0) != 0)}; }},
    {"all", 1, &pick_reduction,
     [](Scene& s) { return Tensors{ops::all(ops::less(s.in[0], 0.5), dims_of(s.step), s.n(0) != 0)}; }},
    {"softmax", 5, &pick_softmax, [](Scene& s) { return Tensors{ops::softmax(s.in[0], s.n(0))}; }},
    {"log_softmax", 3, &pick_softmax, [](Scene& s) { return Tensors{ops::log_softmax(s.in[0], s.n(0))}; }},
    {"layer_norm", 6, [](Draft& d, Step& s) { return pick_norm(d, s, 2); },
     [](Scene& s) { return Tensors{ops::layer_norm(s.in[0], s.in[1], s.in[2], s.step.scalar)}; }, kScalar},
    {"rms_norm", 4, [](Draft& d, Step& s) { return pick_norm(d, s, 1); },
     [](Scene& s) { return Tensors{ops::rms_norm(s.in[0], s.in[1], s.step.scalar)}; }, kScalar},
    {"batch_norm", 3, &pick_channel_norm,
     [](Scene& s) {
       const auto [y, mean, var] = ops::batch_norm(s.in[0], s.in[1], s.in[2], s.step.scalar);
       return Tensors{y, mean, var};
     },
     kScalar},
    // Of other statistics than its own, as a frozen norm has them: default mode computes x * scale + shift, which of a
    // channel of equal values would leave the rounding of both terms where eager execution has 0.
    {"batch_norm_with", 2, &pick_channel_norm,
     [](Scene& s) {
       const ops::BatchNormed of = ops::batch_norm(s.in[0], s.in[1], s.in[2], s.step.scalar);
       return Tensors{ops::batch_norm_with({of.mean + 0.5, of.var}, s.in[0], s.in[1], s.in[2], s.step.scalar)};
     },
     kScalar},
    {"group_norm", 2, &pick_channel_norm,
     [](Scene& s) { return Tensors{ops::group_norm(s.in[0], s.n(0), s.in[1], s.in[2], s.step.scalar)}; }, kScalar},
    {"linear", 8, &pick_linear, [](Scene& s) { return Tensors{ops::linear(s.in[0], s.in[1], s.in[2])}; }},
    {"matmul", 6, &pick_matmul, [](Scene& s) { return Tensors{ops::matmul(s.in[0], s.in[1])}; }},
    {"gram", 2, &pick_gram, [](Scene& s) { return Tensors{ops::matmul(s.in[0], s.in[0].transpose(-2, -1))}; }},
    {"attention", 6, &pick_attention,
     [](Scene& s) {
       return Tensors{ops::scaled_dot_product_attention(s.in[0], s.in[1], s.in[2], {}, {.causal = s.n(0) != 0})};
     }},
    {"attention_dropout", 1, &pick_attention_dropout,
     [](Scene& s) {
       return Tensors{ops::scaled_dot_product_attention(
           s.in[0], s.in[1], s.in[2], {}, {.causal = s.n(0) != 0, .dropout = s.training ? s.step.scalar : 0})};
     },
     kScalar},
    {"attention_mask", 6, &pick_attention_mask,
     [](Scene& s) {
       const Tensor& x = s.in[0];
       const int64_t examples = x.rank() > 2 ? x.size(0) : 1, heads = x.rank() > 3 ? x.size(1) : 1;
       const Tensor q = ops::reshape(x, {examples, heads, x.size(-2), x.size(-1)}), k = ops::tanh(q), v = q * 0.5;
       const ops::AttentionOptions options{.causal = s.n(0) != 0};
       return Tensors{s.n(1) == 0 ? ops::plain_attention(q, k, v, s.in[1], options)
                                  : ops::scaled_dot_product_attention(q, k, v, s.in[1], options)};
     }},
    {"plain_attention", 3, &pick_attention,
     [](Scene& s) { return Tensors{ops::plain_attention(s.in[0], s.in[1], s.in[2], {}, {.causal = s.n(0) != 0})}; }},
    {"embedding", 4, &pick_embedding, [](Scene& s) { return Tensors{ops::embedding(s.in[0], s.in[1])}; }},
    {"cross_entropy", 3, &pick_cross_entropy,
     [](Scene& s) {
       return Tensors{ops::cross_entropy(
           s.in[0], s.in[1], {.label_smoothing = s.step.scalar, .reduction = static_cast<ops::Reduction>(s.n(0))})};
     },
     kScalar},
    {"rotary", 1, &pick_rotary, [](Scene& s) { return Tensors{ops::rotary_embedding(s.in[0], s.n(0))}; }},
    {"conv2d", 3, &pick_convolution,
     [](Scene& s) {
       return Tensors{ops::conv2d(s.in[0], s.in[1], s.in[2], {.stride = s.n(0), .padding = s.n(1), .groups = s.n(2)})};
     },
     kImages},
    {"checkpoint", 2, &pick_linear,
     [](Scene& s) {
       const auto body = [](std::span<const Tensor> in) {
         return Tensors{ops::tanh(ops::linear(ops::gelu(in[0]), in[1], Tensor()))};
       };
       // What eager execution checkpoints always has a history, since it cannot see into the function; and its result,
       // which it does not need, could be written to; and it adds up the gradient of a tensor that it is given twice.
       const bool needed = (s.in[0].requires_grad() || s.in[1].requires_grad()) && !s.in[0].is_same(s.in[1]);
       return Tensors{(needed ? autograd::checkpoint(body, {{s.in[0], s.in[1]}}) : body({{s.in[0], s.in[1]}}))[0] *
                      1.25};
     }},
    {"dropout", 3, &pick_dropout,
     [](Scene& s) { return Tensors{s.training ? ops::dropout(s.in[0], s.step.scalar) : s.in[0]}; }, kScalar},
    {"dropout_generator", 2, &pick_dropout,
     [](Scene& s) { return Tensors{ops::dropout(s.in[0], s.step.scalar, &s.generator)}; }, kScalar},
    {"noise", 2, &pick_dropout,
     [](Scene& s) {
       const TensorOptions like{s.in[0].dtype(), s.in[0].device()};
       return Tensors{s.in[0] * Tensor::randn(s.in[0].sizes(), like) +
                      Tensor::rand(s.in[0].sizes(), like, &s.generator)};
     },
     kScalar},
    {"random_mask", 3, &pick_dropout,
     [](Scene& s) {
       const Tensor drawn = ops::less(Tensor::rand(s.in[0].sizes()), s.step.scalar);
       return Tensors{s.in[0] * drawn.to(s.in[0].dtype()), drawn};
     },
     kScalar},
    {"two_dropouts", 2, &pick_dropout,
     [](Scene& s) {
       const Tensor x = ops::dropout(s.in[0], s.step.scalar);
       return Tensors{x + ops::dropout(ops::tanh(s.in[0]), s.step.scalar), ops::dropout(x, 0.5)};
     },
     kScalar},
    {"dropout_of_a_view", 2, &pick_softmax,
     [](Scene& s) { return Tensors{ops::dropout(s.in[0].transpose(s.n(0), 0), 0.3)}; }},
    {"randint", 1, &pick_dropout,
     [](Scene& s) {
       const Tensor drawn = Tensor::randint(-3, 4, s.in[0].sizes());
       return Tensors{s.in[0] + drawn.to(s.in[0].dtype()), drawn};
     },
     kScalar},
    {"permuted_moments", 4, &pick_reduction,
     [](Scene& s) {
       Dims reversed;
       for (int64_t d = s.in[0].rank(); d-- > 0;) reversed.push_back(d);
       const Tensor x = s.in[0].permute(reversed) * 1.5;
       const Dims dims = dims_of(s.step);
       return Tensors{ops::mean(x, dims, s.n(0) != 0), ops::var(x, dims, 0.0, s.n(0) != 0),
                      x - ops::max(x, dims, /*keepdim=*/true)};
     }},
    {"filled", 2, &pick_dropout,
     [](Scene& s) {
       const TensorOptions like{s.in[0].dtype(), s.in[0].device()};
       Tensor sum = Tensor::zeros(s.in[0].sizes(), like);
       sum += s.in[0];
       return Tensors{sum * Tensor::full(s.in[0].sizes(), s.step.scalar, like) + Tensor::ones({}, like), sum};
     },
     kScalar},
    {"bernoulli", 1, &pick_dropout,
     [](Scene& s) { return Tensors{s.in[0] * ops::bernoulli(s.in[0] * 0.0 + s.step.scalar)}; }, kScalar},
};

}  // namespace

std::span<const StepKind> layer_steps() { return kKinds; }

}  // namespace rondo::fuzz
