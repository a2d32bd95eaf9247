// The public functions of every op. Each takes its tensors as TensorArg, so that an error names the caller's line.
// Shapes are written as comments in the usual letters: B batch, T time, C channels, H heads, D head dim, V vocabulary.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "rondo/runtime/op.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
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
Tensor leaky_relu(TensorArg x, double slope = 0.01);
Tensor silu(TensorArg x);                  // x sigmoid(x); also called swish
Tensor softplus(TensorArg x);              // ln(1 + e^x)
Tensor maximum(TensorArg a, TensorArg b);  // NaN wins; equal operands share the gradient
Tensor minimum(TensorArg a, TensorArg b);
Tensor abs(TensorArg x);
Tensor sign(TensorArg x);  // -1, 0 or 1
Tensor square(TensorArg x);
Tensor pow(TensorArg x, double exponent);  // with the special values of C
Tensor sin(TensorArg x);                   // accurate for |x| < 1e5 in f32, 1e9 in f64
Tensor cos(TensorArg x);
Tensor log1p(TensorArg x);  // ln(1 + x)
Tensor expm1(TensorArg x);  // e^x - 1
// x limited to [low, high]; an infinite bound is none. The gradient passes on the bounds and inside.
Tensor clamp(TensorArg x, double low, double high);
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
// `value` where mask (bool, broadcast to x) is true.
Tensor masked_fill(TensorArg x, TensorArg mask, double value);
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
// Tensors of one shape along a new dimension.
Tensor stack(std::span<const Tensor> parts, int64_t dim, std::source_location where = std::source_location::current());
// x (..., M, N) with 0 above (below) the given diagonal; 0 is the main one, 1 the one above it.
Tensor tril(TensorArg x, int64_t diagonal = 0);
Tensor triu(TensorArg x, int64_t diagonal = 0);

// ---- Elements by index (indexing.cc). Indices are i64 and not negative; a bad one is an error.
// out[i][j] = x[index[i][j]][j] for dim 0, and so on. index may be smaller than x in the other dimensions.
Tensor gather(TensorArg x, int64_t dim, TensorArg index);
// x with source written where gather would read. Of equal indices the last one wins.
Tensor scatter(TensorArg x, int64_t dim, TensorArg index, TensorArg source);
Tensor scatter(TensorArg x, int64_t dim, TensorArg index, double value);
// x with source added there; equal indices add up, in order.
Tensor scatter_add(TensorArg x, int64_t dim, TensorArg index, TensorArg source);
// Slices of x along dim: index (N).
Tensor index_select(TensorArg x, int64_t dim, TensorArg index);
// Running sum, in order.
Tensor cumsum(TensorArg x, int64_t dim);
// Index of the largest (smallest) element: the first of equal ones; NaN wins. Without dim, into the flattened tensor.
Tensor argmax(TensorArg x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);
Tensor argmin(TensorArg x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);
struct ValuesAndIndices {
  Tensor values;
  Tensor indices;  // i64
};
// Stable in both directions; NaN counts as the largest. Gradients flow through the values.
ValuesAndIndices sort(TensorArg x, int64_t dim = -1, bool descending = false);
Tensor argsort(TensorArg x, int64_t dim = -1, bool descending = false);
// The k largest (smallest), best first; of equal elements the lower index comes first; NaN counts as the largest.
ValuesAndIndices topk(TensorArg x, int64_t k, int64_t dim = -1, bool largest = true);

// ---- Reductions (reduction.cc). Empty `dims` means all.
Tensor sum(TensorArg x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(TensorArg x, const Dims& dims = {}, bool keepdim = false);
Tensor max(TensorArg x, const Dims& dims = {}, bool keepdim = false);  // NaN wins
Tensor min(TensorArg x, const Dims& dims = {}, bool keepdim = false);  // NaN wins
// Sums the dimensions along which `sizes` was broadcast to x's shape.
Tensor sum_to(TensorArg x, const Dims& sizes);

// ---- Contractions (matmul.cc)
// a (..., M, K), b (K, N) or (..., K, N) with broadcasting batch dimensions -> (..., M, N).
Tensor matmul(TensorArg a, TensorArg b);
// x (..., in), weight (out, in), bias (out) or undefined -> x weight^T + bias (..., out).
Tensor linear(TensorArg x, TensorArg weight, TensorArg bias);

struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
};
// x (B, C, H, W), weight (O, C, kh, kw), bias (O) or undefined -> (B, O, H / kh, W / kw). Patches only: stride ==
// kernel and no padding; anything else is an error (convolution.cc).
Tensor conv2d(TensorArg x, TensorArg weight, TensorArg bias, Conv2dOptions options);

// ---- Normalisation and softmax (norm.cc), over the last dimension
Tensor layer_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps = 1e-5);
// Zhang and Sennrich, "Root mean square layer normalization" (2019): x / sqrt(mean(x^2) + eps) * weight. weight (C).
Tensor rms_norm(TensorArg x, TensorArg weight, double eps = 1e-6);
Tensor softmax(TensorArg x, int64_t dim = -1);
Tensor log_softmax(TensorArg x, int64_t dim = -1);

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

// ---- Rotary position embedding (rotary.cc). x (..., T, D): row t turns by the angles of position start + t.
struct RotaryTables {
  Tensor cos, sin;  // (T, D/2), in the compute dtype
};
RotaryTables rotary_tables(int64_t T, int64_t D, double base = 10000.0, int64_t start = 0, DType dtype = kF32);
Tensor rotary_embedding(TensorArg x, const RotaryTables& tables);
// The same, making the tables for this one call.
Tensor rotary_embedding(TensorArg x, int64_t start = 0, double base = 10000.0);

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
struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::kMean;
  int64_t chunk_rows = 0;  // rows whose logits exist at one time; 0: as many as suit V
};
// cross_entropy(linear(x, weight, bias), target), while only chunk_rows * V logits exist at a time, in their gradient
// too. x (N, C), weight (V, C), bias (V) or undefined, target i64 (N); floats of one dtype, which the result has. Under
// autocast the products run in its dtype, and loss and gradients are f32. Where a gradient is needed, those of a scalar
// loss are computed along with it (a no_grad() scope spares that).
Tensor linear_cross_entropy(TensorArg x, TensorArg weight, TensorArg bias, TensorArg target,
                            LinearCrossEntropyOptions options = {});

// ---- Random (dropout.cc). Zeroes elements with probability p and scales the others by 1 / (1 - p). Takes one offset
// of the generator (null: default_generator()); an element's fate depends on (seed, offset, its index) only.
Tensor dropout(TensorArg x, double p, Generator* generator = nullptr);

}  // namespace rondo::ops
#pragma GCC visibility pop
