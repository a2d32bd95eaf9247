// The public functions of every op. Each takes its tensors as TensorArg, so that an error names the caller's line. Each
// throws Error for an undefined tensor, which is Tensor() or {}, unless its comment allows one. Shapes use the usual
// letters: B batch, T time, C channels, H heads, D head dimension, V vocabulary.
#pragma once

#include <array>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "rondo/runtime/op/communicator.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::ops {

// ---- Elementwise. Operands broadcast. Dtypes are promoted as in PyTorch (promotion.h); a Scalar operand counts as a
// number, not as a tensor (scalar.h). A quotient of integers is f32, and so are exp, sin and similar functions of
// integers. In place, a float result in an integer tensor is an error.
Tensor add(TensorArg a, TensorArg b);
Tensor sub(TensorArg a, TensorArg b);
Tensor mul(TensorArg a, TensorArg b);
Tensor div(TensorArg a, TensorArg b);
Tensor add(TensorArg a, Scalar s);
Tensor sub(TensorArg a, Scalar s);
Tensor mul(TensorArg a, Scalar s);
Tensor div(TensorArg a, Scalar s);
Tensor rsub(TensorArg a, Scalar s);  // s - a
Tensor rdiv(TensorArg a, Scalar s);  // s / a
Tensor neg(TensorArg x);
Tensor exp(TensorArg x);
Tensor log(TensorArg x);
Tensor sqrt(TensorArg x);
Tensor rsqrt(TensorArg x);
Tensor tanh(TensorArg x);
Tensor erf(TensorArg x);
Tensor sigmoid(TensorArg x);
Tensor relu(TensorArg x);
Tensor relu6(TensorArg x);      // min(max(x, 0), 6)
Tensor hardswish(TensorArg x);  // Howard et al., "Searching for MobileNetV3" (2019): x relu6(x + 3) / 6
Tensor leaky_relu(TensorArg x, double slope = 0.01);
Tensor silu(TensorArg x);                  // x sigmoid(x); also called swish
Tensor softplus(TensorArg x);              // ln(1 + e^x)
Tensor maximum(TensorArg a, TensorArg b);  // propagates NaN; equal operands share the gradient
Tensor minimum(TensorArg a, TensorArg b);
Tensor maximum(TensorArg a, Scalar b);
Tensor minimum(TensorArg a, Scalar b);
Tensor abs(TensorArg x);
Tensor sign(TensorArg x);  // -1, 0 or 1; 0 for NaN
Tensor square(TensorArg x);
Tensor pow(TensorArg x, Scalar exponent);  // special values as in C's pow
Tensor sin(TensorArg x);                   // accurate for |x| < 1e5 in f32, 1e9 in f64
Tensor cos(TensorArg x);
Tensor log1p(TensorArg x);  // ln(1 + x)
Tensor expm1(TensorArg x);  // e^x - 1
// Limits x to [low, high]; an infinite bound does not limit. Gradients pass only where low < x < high.
Tensor clamp(TensorArg x, Scalar low, Scalar high);
enum class GeluKind { kTanh, kErf };
// Gaussian error linear unit (Hendrycks and Gimpel, 2016); kTanh is GPT-2's approximation.
Tensor gelu(TensorArg x, GeluKind kind = GeluKind::kTanh);
// Comparisons give a bool tensor. NaN compares false, except in not_equal.
Tensor equal(TensorArg a, TensorArg b);
Tensor not_equal(TensorArg a, TensorArg b);
Tensor less(TensorArg a, TensorArg b);
Tensor less_equal(TensorArg a, TensorArg b);
Tensor greater(TensorArg a, TensorArg b);
Tensor greater_equal(TensorArg a, TensorArg b);
Tensor equal(TensorArg a, Scalar b);
Tensor not_equal(TensorArg a, Scalar b);
Tensor less(TensorArg a, Scalar b);
Tensor less_equal(TensorArg a, Scalar b);
Tensor greater(TensorArg a, Scalar b);
Tensor greater_equal(TensorArg a, Scalar b);
// Bitwise operations on integers, and logical ones on bools (bitwise.cc). Dtypes are promoted as in add;
// floats are an error.
Tensor bitwise_and(TensorArg a, TensorArg b);
Tensor bitwise_or(TensorArg a, TensorArg b);
Tensor bitwise_xor(TensorArg a, TensorArg b);
Tensor bitwise_and(TensorArg a, Scalar b);
Tensor bitwise_or(TensorArg a, Scalar b);
Tensor bitwise_xor(TensorArg a, Scalar b);
Tensor bitwise_not(TensorArg x);
// Shifts `a` by `b` bits; for integers only. Bits that leave the dtype are lost. shift_right keeps the sign. If b is
// negative, or at least the number of bits of the dtype, all bits are shifted out.
Tensor shift_left(TensorArg a, TensorArg b);
Tensor shift_right(TensorArg a, TensorArg b);
Tensor shift_left(TensorArg a, Scalar b);
Tensor shift_right(TensorArg a, Scalar b);
// Tests of each element (predicate.cc); they give a bool tensor. Integers are always finite.
Tensor isfinite(TensorArg x);
Tensor isinf(TensorArg x);
Tensor isnan(TensorArg x);
// Returns `a` where condition (bool) is true, and `b` where it is false.
Tensor where(TensorArg condition, TensorArg a, TensorArg b);
Tensor where(TensorArg condition, TensorArg a, Scalar b);
Tensor where(TensorArg condition, Scalar a, TensorArg b);
Tensor where(TensorArg condition, Scalar a, Scalar b);
// Returns `value` where mask (bool, broadcast to x) is true, and x where it is false. The value is converted to x's
// dtype as by fill_.
Tensor masked_fill(TensorArg x, TensorArg mask, Scalar value);
Tensor cast(TensorArg x, DType dtype);         // always a dense copy
Tensor to_device(TensorArg x, Device device);  // as Tensor::to(Device)

// ---- In place: the first operand is overwritten.
void add_(TensorArg a, TensorArg b);
void sub_(TensorArg a, TensorArg b);
void mul_(TensorArg a, TensorArg b);
void div_(TensorArg a, TensorArg b);
void add_(TensorArg a, Scalar s);
void sub_(TensorArg a, Scalar s);
void mul_(TensorArg a, Scalar s);
void div_(TensorArg a, Scalar s);
void copy_(TensorArg target, TensorArg source);  // broadcasts and converts
void fill_(TensorArg target, Scalar value);      // an integer target drops the fraction; the value must be in its range

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
// Splits x into parts of `size` along `dim`; the last part may be shorter. One op makes all parts, and one op makes
// their gradient.
std::vector<Tensor> split(TensorArg x, int64_t size, int64_t dim);
// Splits x into `n` parts. Their size is rounded up, and last parts that would be empty are left out.
std::vector<Tensor> chunk(TensorArg x, int64_t n, int64_t dim);
// Returns x.select(dim, i) for every i, as one call. stack() puts them together again.
std::vector<Tensor> unbind(TensorArg x, int64_t dim = 0);
// Joins tensors along a dimension: cat({a, b}, 0).
Tensor cat(std::span<const Tensor> parts, int64_t dim = 0,
           std::source_location where = std::source_location::current());
Tensor cat(std::initializer_list<Tensor> parts, int64_t dim = 0,
           std::source_location where = std::source_location::current());
// Joins tensors of one shape along a new dimension.
Tensor stack(std::span<const Tensor> parts, int64_t dim = 0,
             std::source_location where = std::source_location::current());
Tensor stack(std::initializer_list<Tensor> parts, int64_t dim = 0,
             std::source_location where = std::source_location::current());
// Returns x (..., M, N) with 0 above (below) the given diagonal. Diagonal 0 is the main one, 1 the one above it.
Tensor tril(TensorArg x, int64_t diagonal = 0);
Tensor triu(TensorArg x, int64_t diagonal = 0);

// Converts `index`, an operand of `op`, to i64. Throws Error unless it is i64 or i32. For functions that take indices.
Tensor index_operand(const char* op, TensorArg index);

// ---- Elements by index (indexing.cc). Indices are i64 or i32. An index that is negative or out of range is an error.
// This holds for all arguments that are indices: token ids, targets, positions.
// gather: for dim 0, out[i][j] = x[index[i][j]][j], and so on. In the other dimensions index may be smaller than x.
Tensor gather(TensorArg x, int64_t dim, TensorArg index);
// Returns x with source written where gather would read. If indices are equal, the last one wins.
Tensor scatter(TensorArg x, int64_t dim, TensorArg index, TensorArg source);
Tensor scatter(TensorArg x, int64_t dim, TensorArg index, Scalar value);
// Returns x with source added where gather would read. Values of equal indices add up, in order. The result has the
// wider dtype, as in cat.
Tensor scatter_add(TensorArg x, int64_t dim, TensorArg index, TensorArg source);
// Returns x with the slices of source added along dim: x[..., index[i], ...] += source[..., i, ...], in order. index
// (N); source has x's sizes, but N along dim.
Tensor index_add(TensorArg x, int64_t dim, TensorArg index, TensorArg source);
// In place: row at[b, t] of x[b, h] becomes source[b, h, t]. x (B, H, S, D), source (B, H, T, D) of x's dtype, at (B,
// T). A row whose index is not in [0, S) is not written; this is no error. If several rows have one index, the last one
// wins. KVCache uses this function: the indices are data, so one compiled region serves all of them.
void write_rows_(TensorArg x, TensorArg source, TensorArg at);
// Returns the slices x[..., index[i], ...] along dim. index (N).
Tensor index_select(TensorArg x, int64_t dim, TensorArg index);
// Returns running sums, added in order; i64 for integers and bools.
Tensor cumsum(TensorArg x, int64_t dim);
// Returns the index of the largest (smallest) element, the first one if several are equal; NaN comes before all
// numbers. Without dim: the index into the flattened tensor.
Tensor argmax(TensorArg x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);
Tensor argmin(TensorArg x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);
struct ValuesAndIndices {
  Tensor values;
  Tensor indices;  // i64
};
// Sorts along dim. Equal elements keep their order, also if descending; NaN counts as the largest. Gradients flow
// through the values.
ValuesAndIndices sort(TensorArg x, int64_t dim = -1, bool descending = false);
Tensor argsort(TensorArg x, int64_t dim = -1, bool descending = false);
// Returns the k largest (smallest), best first. Equal elements come in the order of their indices. NaN counts as the
// largest.
ValuesAndIndices topk(TensorArg x, int64_t k, int64_t dim = -1, bool largest = true);

// ---- Reductions (reduction.cc) over one dimension, several, or (without `dims`) all: sum(x, 1), sum(x, {0, -1}).
Tensor sum(TensorArg x, const ReduceDims& dims = {}, bool keepdim = false);   // i64 for integers and bools
Tensor mean(TensorArg x, const ReduceDims& dims = {}, bool keepdim = false);  // of floats only
Tensor max(TensorArg x, const ReduceDims& dims = {}, bool keepdim = false);   // propagates NaN
Tensor min(TensorArg x, const ReduceDims& dims = {}, bool keepdim = false);   // propagates NaN
// Variance and standard deviation (statistics.cc): sum((x - mean)^2) / (n - correction), over n elements. The default
// correction of 1 gives the unbiased variance of a sample; 0 gives that of the values themselves. var_mean reads x once
// for both.
Tensor var(TensorArg x, const ReduceDims& dims = {}, double correction = 1, bool keepdim = false);
struct VarAndMean {
  Tensor var, mean;
};
VarAndMean var_mean(TensorArg x, const ReduceDims& dims = {}, double correction = 1, bool keepdim = false);
Tensor std(TensorArg x, const ReduceDims& dims = {}, double correction = 1, bool keepdim = false);
// True if any element (every element) is not 0; NaN is not 0. Gives bool (predicate.cc).
Tensor any(TensorArg x, const ReduceDims& dims = {}, bool keepdim = false);
Tensor all(TensorArg x, const ReduceDims& dims = {}, bool keepdim = false);
// Sums over the dimensions along which `sizes` was broadcast to x's shape.
Tensor sum_to(TensorArg x, const Dims& sizes);

// ---- Contractions (matmul.cc)
// a (..., M, K), b (K, N) or (..., K, N) with broadcasting batch dimensions -> (..., M, N).
Tensor matmul(TensorArg a, TensorArg b);
// x (..., in), weight (out, in), bias (out) or undefined -> x weight^T + bias (..., out).
Tensor linear(TensorArg x, TensorArg weight, TensorArg bias);

// ---- Convolutions (convolution.cc). x (B, C, H, W) and weight (O, C / groups, kh, kw) may be channels last: they then
// lie in memory as (B, H, W, C), and so does the result. Spatial holds a number for each spatial dimension, or one for
// all: {2, 1}, or 2.
template <int N> struct Spatial {
  std::array<int64_t, N> size = {};
  constexpr Spatial(std::integral auto n) { size.fill(static_cast<int64_t>(n)); }
  constexpr Spatial(int64_t h, int64_t w) requires(N == 2) : size{h, w} {}
  constexpr int64_t operator[](int d) const { return size[static_cast<size_t>(d)]; }
};
struct SamePadding {};
inline constexpr SamePadding kSamePadding;
// The number of zeros at both ends of each spatial dimension. kSamePadding adds as many zeros as keep the size; it
// requires stride 1.
template <int N> struct ConvPadding : Spatial<N> {
  using Spatial<N>::Spatial;
  constexpr ConvPadding(SamePadding) : Spatial<N>(0), same(true) {}
  bool same = false;
};
template <int N> struct ConvOptions {
  Spatial<N> stride = 1;
  ConvPadding<N> padding = 0;
  Spatial<N> dilation = 1;
  int64_t groups = 1;
};
using Conv1dOptions = ConvOptions<1>;
using Conv2dOptions = ConvOptions<2>;
// x (B, C, W), weight (O, C / groups, kw), bias (O) or undefined -> (B, O, ow),
// ow = (W + 2 padding - dilation (kw - 1) - 1) / stride + 1.
Tensor conv1d(TensorArg x, TensorArg weight, TensorArg bias, Conv1dOptions options = {});
// Does the same over height and width: x (B, C, H, W), weight (O, C / groups, kh, kw) -> (B, O, oh, ow).
Tensor conv2d(TensorArg x, TensorArg weight, TensorArg bias, Conv2dOptions options = {});
struct ConvTranspose2dOptions {
  Spatial<2> stride = 1;
  Spatial<2> padding = 0;
  Spatial<2> output_padding = 0;  // more rows and columns at the end; less than the stride or the dilation
  int64_t groups = 1;
  Spatial<2> dilation = 1;
};
// x (B, C, H, W), weight (C, O / groups, kh, kw), bias (O) or undefined -> (B, O, oh, ow),
// oh = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1.
Tensor conv_transpose2d(TensorArg x, TensorArg weight, TensorArg bias, ConvTranspose2dOptions options = {});

// ---- Images (B, C, H, W): pooling.cc, interpolation.cc, resample.cc
struct MaxPool2dOptions {
  std::optional<Spatial<2>> stride = std::nullopt;  // default: the kernel's size
  Spatial<2> padding = 0;                           // at most half of the kernel; padding is never the maximum
  Spatial<2> dilation = 1;
  bool ceil_mode = false;  // true: the last window may reach over the end
};
// (B, C, oh, ow), oh = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1. NaN is larger than every number. Among
// equal elements the first gets the gradient.
Tensor max_pool2d(TensorArg x, Spatial<2> kernel, MaxPool2dOptions options = {});
struct AvgPool2dOptions {
  std::optional<Spatial<2>> stride = std::nullopt;  // default: the kernel's size
  Spatial<2> padding = 0;                           // at most half of the kernel
  bool ceil_mode = false;
  bool count_include_pad = true;  // the mean counts zeros of the padding
};
Tensor avg_pool2d(TensorArg x, Spatial<2> kernel, AvgPool2dOptions options = {});
// Averages over windows [floor(i H / oh), ceil((i + 1) H / oh)): (B, C, oh, ow).
Tensor adaptive_avg_pool2d(TensorArg x, Spatial<2> size);

enum class InterpolateMode { kNearest, kBilinear, kBicubic };
struct InterpolateOptions {
  InterpolateMode mode = InterpolateMode::kNearest;
  bool align_corners = false;  // true: the pixels of the corners keep their places; not for kNearest
  // True: when an image shrinks, results are means of all pixels, as in Pillow and PyTorch. Not for kNearest. The
  // coefficient a of the bicubic filter is -0.5 with antialias and -0.75 without, as in PyTorch.
  bool antialias = false;
};
// Resizes images to (B, C, h, w) for `size` {h, w}. kNearest takes every dtype, such as integer masks; the others take
// floats.
Tensor interpolate(TensorArg x, Spatial<2> size, InterpolateOptions options = {});

enum class PadMode { kConstant, kReflect, kReplicate };
// `amounts`: PyTorch's order, the last dimension first: {left, right, top, bottom}. Negative ones crop (kConstant
// only). kReflect does not repeat the edge, so its amounts must be less than the size.
Tensor pad(TensorArg x, const Dims& amounts, PadMode mode = PadMode::kConstant, double value = 0);
// Rearranges (B, C f f, H, W) -> (B, C, H f, W f), f = factor.
Tensor pixel_shuffle(TensorArg x, int64_t factor);

// ---- Normalisation and softmax (norm.cc), over the last dimension
Tensor layer_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps = 1e-5);
// Zhang and Sennrich, "Root mean square layer normalization" (2019): x / sqrt(mean(x^2) + eps) * weight. weight (C).
Tensor rms_norm(TensorArg x, TensorArg weight, double eps = 1e-6);
Tensor softmax(TensorArg x, int64_t dim = -1);
Tensor log_softmax(TensorArg x, int64_t dim = -1);

// ---- Normalisation of channels (channel_norm.cc). x (B, C, ...), weight and bias (C) or undefined, in x's dtype, or
// in f32 if x is of 16 bits. (x - mean) / sqrt(var + eps) * weight + bias.
struct BatchNormed {
  Tensor y;
  Tensor mean, var;  // (C), in the compute dtype; the variance divides by the number of values
};
// Ioffe and Szegedy, "Batch normalization" (2015), with the statistics of each channel in x. If x has no
// elements, they are NaN.
BatchNormed batch_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps = 1e-5);
struct Statistics {
  Tensor mean, var;  // (C)
};
// Applies batch_norm with given statistics, as in evaluation. Gradients may flow into the statistics.
Tensor batch_norm_with(const Statistics& of, TensorArg x, TensorArg weight, TensorArg bias, double eps = 1e-5);
// Wu and He, "Group normalization" (2018): the statistics of each group of C / groups neighbouring channels.
Tensor group_norm(TensorArg x, int64_t groups, TensorArg weight, TensorArg bias, double eps = 1e-5);

// ---- Attention (attention.cc)
struct AttentionOptions {
  bool causal = false;
  std::optional<double> scale = std::nullopt;  // default 1 / sqrt(D)
  double dropout = 0;                          // the weights go through dropout() with this probability
  Generator* generator = nullptr;              // for dropout, which takes one offset; null: default_generator()
};
// q (B, H, Tq, D), k and v (B, Hkv, Tk, D) with Hkv dividing H -> (B, H, Tq, D), laid out in memory as (B, Tq, H, D).
// The mask is undefined, or one of these, broadcast:
// - bool (B, H, Tq, Tk): true means that the query may attend to the key;
// - q's dtype (B, H, Tq, Tk): added to the scores. If it requires a gradient, it gets one (relative positions); then
//   the backward stores one Tq x Tk matrix for each head;
// - i64 or i32 (B, H, Tq, 1): the first key of each query. With (B, H, Tq, 2), the second number is the end of its
//   keys. Keys outside of this range cost no time. See first_keys() in modules/layers/attention.h.
// The kernel is tiled as in Dao et al., "FlashAttention" (2022): no Tq x Tk matrix is stored, even with dropout. If Tk
// is a multiple of 4, dropout drops the weights that dropout(weights) would drop. The v of a masked or dropped key is
// multiplied by 0, so k and v must be finite everywhere.
Tensor scaled_dot_product_attention(TensorArg q, TensorArg k, TensorArg v, const Tensor& mask = {},
                                    AttentionOptions options = {});

// Computes the same as scaled_dot_product_attention(), but stores every score: slow, but differentiable any number of
// times.
Tensor plain_attention(TensorArg q, TensorArg k, TensorArg v, const Tensor& mask = {}, AttentionOptions options = {});

// ---- Rotary position embedding (rotary.cc). x (..., T, D): row t is rotated by the angles of position start + t.
struct RotaryTables {
  Tensor cos, sin;  // (T, D/2), in the compute dtype of x
};
RotaryTables rotary_tables(int64_t T, int64_t D, double base = 10000.0, int64_t start = 0, TensorOptions options = {});
Tensor rotary_embedding(TensorArg x, const RotaryTables& tables);
// Computes the tables for this call, then does the same.
Tensor rotary_embedding(TensorArg x, int64_t start = 0, double base = 10000.0);

// ---- Embedding and losses (embedding.cc, loss.cc, pointwise_loss.cc)
// weight (V, C), indices i64 or i32 of any shape -> indices' shape + (C).
Tensor embedding(TensorArg weight, TensorArg indices);
enum class Reduction { kMean, kSum, kNone };
// Losses of each element of x and target, which have one shape; reduced to a scalar unless kNone.
Tensor mse_loss(TensorArg x, TensorArg target, Reduction reduction = Reduction::kMean);  // (x - target)^2
Tensor l1_loss(TensorArg x, TensorArg target, Reduction reduction = Reduction::kMean);   // |x - target|
struct HuberLossOptions {
  double delta = 1.0;
  Reduction reduction = Reduction::kMean;
};
// The loss of Huber (1964). With d = |x - target|, it is d^2 / 2 up to d = delta, and delta (d - delta / 2) above.
Tensor huber_loss(TensorArg x, TensorArg target, HuberLossOptions options = {});
struct BCEWithLogitsOptions {
  Tensor weight = {};      // of each element, broadcast to x; undefined: 1
  Tensor pos_weight = {};  // of the positive targets, broadcast to x; undefined: 1
  Reduction reduction = Reduction::kMean;
};
// Binary cross-entropy of sigmoid(x) against targets in [0, 1]; stable for large |x|.
// weight (pos_weight target softplus(-x) + (1 - target) softplus(x)). weight and pos_weight get no gradient.
Tensor bce_with_logits(TensorArg x, TensorArg target, BCEWithLogitsOptions options = {});
struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::kMean;
};
// logits (N, V), target i64 or i32 (N) -> scalar, or (N) for kNone. kMean averages over the targets that are not
// ignored.
Tensor cross_entropy(TensorArg logits, TensorArg target, CrossEntropyOptions options = {});
struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::kMean;
  int64_t chunk_rows = 0;  // rows whose logits exist at one time; 0: chosen for V
};
// Computes cross_entropy(linear(x, weight, bias), target), but only chunk_rows * V logits, or gradients of logits,
// exist at a time. x (N, C), weight (V, C), bias (V) or undefined, target i64 or i32 (N). The floats have one dtype,
// which is the result's. Under autocast the products run in its dtype, and loss and gradients are f32. If an operand
// requires a gradient, the forward of a scalar loss computes the gradients too, but not under no_grad() or in f16.
Tensor linear_cross_entropy(TensorArg x, TensorArg weight, TensorArg bias, TensorArg target,
                            LinearCrossEntropyOptions options = {});

// ---- Random (dropout.cc). Zeroes elements with probability p in [0, 1] and scales the others by 1 / (1 - p). Takes
// one offset of the generator (null: default_generator()). What happens to an element depends on (seed, offset, its
// index) only.
Tensor dropout(TensorArg x, double p, Generator* generator = nullptr);
// random.cc. Each element of the result is 1 with probability p, else 0. The result has p's shape and floating dtype,
// and no gradient. Takes one offset of the generator.
Tensor bernoulli(TensorArg p, Generator* generator = nullptr);

// ---- Collectives (collective.cc). The sum of x, of a floating dtype, over all ranks of the communicator. Every rank
// must make this call, with the same shape and dtype, and in the same order among its collectives. The gradient is the
// sum of the gradients of all ranks: another collective, which every rank's backward must reach. A region records it
// like any op (Note [Collectives are effects]).
// Tensor parallelism by hand: sum the partial results of a layer that is split by its inputs, divide each rank's loss
// by the number of ranks, and add up the gradients of parameters that every rank holds. All gradients then equal those
// of one process.
Tensor all_reduce_sum(TensorArg x, const Communicator& communicator);

}  // namespace rondo::ops
#pragma GCC visibility pop
