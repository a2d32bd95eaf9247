// The public functions of every op. Each takes its tensors as TensorArg, so that an error names the caller's line.
// Shapes are written as comments in the usual letters: B batch, T time, C channels, H heads, D head dim, V vocabulary.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rondo/runtime/op.h"
#include "rondo/runtime/tensor.h"

namespace rondo::ops {

// ---- Elementwise (elementwise.cc). Operands broadcast; dtypes are promoted.
Tensor add(TensorArg a, TensorArg b);
Tensor sub(TensorArg a, TensorArg b);
Tensor mul(TensorArg a, TensorArg b);
Tensor div(TensorArg a, TensorArg b);
Tensor add(TensorArg a, double s);
Tensor mul(TensorArg a, double s);
Tensor div(TensorArg a, double s);
Tensor rsub(TensorArg a, double s);  // s - a
Tensor rdiv(TensorArg a, double s);  // s / a
Tensor neg(TensorArg x);
Tensor exp(TensorArg x);
Tensor log(TensorArg x);
Tensor sqrt(TensorArg x);
Tensor rsqrt(TensorArg x);
Tensor tanh(TensorArg x);
Tensor erf(TensorArg x);
Tensor sigmoid(TensorArg x);
Tensor relu(TensorArg x);
enum class GeluKind { kTanh, kErf };
// Gaussian error linear unit (Hendrycks and Gimpel, 2016); kTanh is GPT-2's approximation.
Tensor gelu(TensorArg x, GeluKind kind = GeluKind::kTanh);
// Comparisons give bool.
Tensor equal(TensorArg a, TensorArg b);
Tensor not_equal(TensorArg a, TensorArg b);
Tensor less(TensorArg a, TensorArg b);
Tensor less_equal(TensorArg a, TensorArg b);
Tensor greater(TensorArg a, TensorArg b);
Tensor greater_equal(TensorArg a, TensorArg b);
// condition ? a : b, elementwise; condition is bool.
Tensor where(TensorArg condition, TensorArg a, TensorArg b);
Tensor where(TensorArg condition, TensorArg a, double b);
Tensor cast(TensorArg x, DType dtype);  // always a dense copy

// ---- In place: the first operand is overwritten.
void add_(TensorArg a, TensorArg b);
void sub_(TensorArg a, TensorArg b);
void mul_(TensorArg a, TensorArg b);
void div_(TensorArg a, TensorArg b);
void add_(TensorArg a, double s);
void mul_(TensorArg a, double s);
void copy_(TensorArg target, TensorArg source);  // broadcasts and converts
void fill_(TensorArg target, double value);

// ---- Views (view.cc): no data moves.
Tensor view(TensorArg x, const Dims& sizes);     // one size may be -1; throws if the strides do not allow it
Tensor reshape(TensorArg x, const Dims& sizes);  // a view where possible, else a copy
Tensor permute(TensorArg x, const Dims& order);
Tensor transpose(TensorArg x, int64_t a, int64_t b);
Tensor expand(TensorArg x, const Dims& sizes);  // -1 keeps a size
Tensor select(TensorArg x, int64_t dim, int64_t index);
Tensor slice(TensorArg x, int64_t dim, Slice range);
Tensor squeeze(TensorArg x, int64_t dim);
Tensor unsqueeze(TensorArg x, int64_t dim);
Tensor flatten(TensorArg x, int64_t first = 0, int64_t last = -1);
// Pieces of `size` along `dim`; the last may be shorter.
std::vector<Tensor> split(TensorArg x, int64_t size, int64_t dim);
Tensor cat(std::span<const Tensor> parts, int64_t dim, std::source_location where = std::source_location::current());

// ---- Reductions (reduction.cc). Empty `dims` means all.
Tensor sum(TensorArg x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(TensorArg x, const Dims& dims = {}, bool keepdim = false);
Tensor max(TensorArg x, const Dims& dims = {}, bool keepdim = false);  // NaN wins
// Sums the dimensions along which `sizes` was broadcast to x's shape.
Tensor sum_to(TensorArg x, const Dims& sizes);

// ---- Contractions (matmul.cc)
// a (..., M, K), b (K, N) or (..., K, N) with broadcasting batch dimensions -> (..., M, N).
Tensor matmul(TensorArg a, TensorArg b);
// x (..., in), weight (out, in), bias (out) or undefined -> x weight^T + bias (..., out).
Tensor linear(TensorArg x, TensorArg weight, TensorArg bias);

// ---- Normalisation and softmax (norm.cc), over the last dimension
Tensor layer_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps = 1e-5);
Tensor softmax(TensorArg x);
Tensor log_softmax(TensorArg x);

// ---- Attention (attention.cc)
struct AttentionOptions {
  bool causal = false;
  std::optional<double> scale = std::nullopt;  // default 1 / sqrt(D)
};
// q (B, H, Tq, D), k and v (B, Hkv, Tk, D) with Hkv dividing H -> (B, H, Tq, D), laid out in memory as (B, Tq, H, D).
// mask: undefined, bool (true = may attend) or additive, broadcast to (B, H, Tq, Tk).
// Tiled after Dao et al., "FlashAttention" (2022): no Tq x Tk matrix is stored.
Tensor scaled_dot_product_attention(TensorArg q, TensorArg k, TensorArg v, const Tensor& mask = {},
                                    AttentionOptions options = {});

// The same result with every score stored: slow, differentiable any number of times.
Tensor plain_attention(TensorArg q, TensorArg k, TensorArg v, const Tensor& mask = {}, AttentionOptions options = {});

// ---- Embedding and loss (embedding.cc, loss.cc)
// weight (V, C), indices i64 of any shape -> indices' shape + (C).
Tensor embedding(TensorArg weight, TensorArg indices);
enum class Reduction { kMean, kSum, kNone };
struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::kMean;
};
// logits (N, V), target i64 (N) -> scalar, or (N) for kNone. kMean averages over the targets that are not ignored.
Tensor cross_entropy(TensorArg logits, TensorArg target, CrossEntropyOptions options = {});

// ---- Random (dropout.cc). Zeroes elements with probability p and scales the others by 1 / (1 - p). Takes one offset of
// the generator (null: default_generator()); an element's fate depends on (seed, offset, its index) only.
Tensor dropout(TensorArg x, double p, Generator* generator = nullptr);

}  // namespace rondo::ops
