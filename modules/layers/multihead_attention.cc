#include "rondo/modules/layers/multihead_attention.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"

namespace rondo::nn {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw_op_error("MultiheadAttention", what, std::source_location::current());
}

// Returns a parameter with the starting values of PyTorch's xavier_uniform_.
Tensor glorot_parameter(int64_t rows, int64_t columns) {
  if (rows <= 0 || columns <= 0)
    throw Error(absl::StrCat("MultiheadAttention: sizes must be positive, got ", rows, " and ", columns));
  const FloatingPointScope floating_point;
  return uniform_parameter({rows, columns}, std::sqrt(6.0 / static_cast<double>(rows + columns)));
}

// Returns embed_dim. Throws Error if it is not positive or 3 * embed_dim overflows.
int64_t checked_width(int64_t embed_dim) {
  if (embed_dim <= 0 || embed_dim > INT64_MAX / 3)
    throw Error(absl::StrCat("MultiheadAttention: embed_dim must be positive and fit into memory, got ", embed_dim));
  return embed_dim;
}

bool has_one_width(int64_t embed_dim, const MultiheadAttentionOptions& options) {
  return options.kdim.value_or(embed_dim) == embed_dim && options.vdim.value_or(embed_dim) == embed_dim;
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t embed_dim, int64_t num_heads, MultiheadAttentionOptions options)
    : embed_dim(checked_width(embed_dim)),
      num_heads(num_heads),
      options(options),
      in_proj_weight(parameter(
          "in_proj_weight", has_one_width(embed_dim, options) ? glorot_parameter(3 * embed_dim, embed_dim) : Tensor())),
      q_proj_weight(parameter("q_proj_weight",
                              has_one_width(embed_dim, options) ? Tensor() : glorot_parameter(embed_dim, embed_dim))),
      k_proj_weight(parameter("k_proj_weight", has_one_width(embed_dim, options)
                                                   ? Tensor()
                                                   : glorot_parameter(embed_dim, options.kdim.value_or(embed_dim)))),
      v_proj_weight(parameter("v_proj_weight", has_one_width(embed_dim, options)
                                                   ? Tensor()
                                                   : glorot_parameter(embed_dim, options.vdim.value_or(embed_dim)))),
      in_proj_bias(parameter("in_proj_bias", options.bias ? constant_parameter({3 * embed_dim}, 0.0) : Tensor())),
      out_proj(child("out_proj", embed_dim, embed_dim, LinearOptions{.bias = options.bias})),
      dropout(child("dropout", options.dropout)) {
  if (num_heads <= 0 || embed_dim % num_heads != 0)
    throw Error(
        absl::StrCat("MultiheadAttention: num_heads must divide embed_dim, got ", num_heads, " and ", embed_dim));
  const NoGrad off;
  if (options.bias && !SkipInit::without_memory()) out_proj.bias.fill_(0.0);
}

std::vector<Tensor> MultiheadAttention::project(const Tensor& query, const Tensor& key, const Tensor& value) const {
  const int64_t E = embed_dim;
  const auto bias = [&](int64_t first, int64_t n) {
    return in_proj_bias.defined() ? ops::slice(in_proj_bias, 0, {first * E, (first + n) * E}) : Tensor();
  };
  if (!in_proj_weight.defined())
    return {ops::linear(query, q_proj_weight, bias(0, 1)), ops::linear(key, k_proj_weight, bias(1, 1)),
            ops::linear(value, v_proj_weight, bias(2, 1))};
  const auto rows = [&](const Tensor& x, int64_t first, int64_t n) {  // n tensors (..., E), by one product
    return ops::split(ops::linear(x, ops::slice(in_proj_weight, 0, {first * E, (first + n) * E}), bias(first, n)), E,
                      -1);
  };
  if (query.is_same(key) && key.is_same(value))
    return ops::split(ops::linear(query, in_proj_weight, in_proj_bias), E, -1);
  if (key.is_same(value)) {
    const std::vector<Tensor> both = rows(key, 1, 2);
    return {rows(query, 0, 1)[0], both[0], both[1]};
  }
  return {rows(query, 0, 1)[0], rows(key, 1, 1)[0], rows(value, 2, 1)[0]};
}

Tensor MultiheadAttention::joined(const AttentionMasks& masks, int64_t B, int64_t L, int64_t S, DType dtype) const {
  const auto check = [&](const char* name, const Tensor& mask, bool fits, const char* shape) {
    if (!fits || (mask.dtype() != kBool && !is_floating(mask.dtype())))
      fail(absl::StrCat(name, " must be bool or floating ", shape, " with B = ", B, ", H = ", num_heads, ", L = ", L,
                        ", S = ", S, ", got ", std::string(name_of(mask.dtype())), to_string(mask.sizes())));
    return mask.dtype() == kBool ? mask : mask.to(dtype);
  };
  Tensor padding, pairs;
  if (const Tensor& mask = masks.key_padding_mask; mask.defined())
    padding = check("key_padding_mask", mask, mask.sizes() == Dims{B, S}, "(B, S)").view({B, 1, 1, S});
  if (const Tensor& mask = masks.attn_mask; mask.defined()) {
    const bool of_heads = mask.sizes() == Dims{B * num_heads, L, S};
    pairs = check("attn_mask", mask, of_heads || mask.sizes() == Dims{L, S}, "(L, S) or (B H, L, S)");
    if (of_heads) pairs = pairs.reshape({B, num_heads, L, S});
  }
  if (!padding.defined() && !pairs.defined()) return Tensor();
  // In PyTorch's bool masks, true means that a query does not attend to the key.
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto both = [&]() -> Tensor {
    if (!padding.defined() || !pairs.defined()) return padding.defined() ? padding : pairs;
    if (padding.dtype() == pairs.dtype())
      return padding.dtype() == kBool ? ops::bitwise_or(padding, pairs) : padding + pairs;
    return padding.dtype() == kBool ? ops::where(padding, kNever, pairs) : ops::where(pairs, kNever, padding);
  };
  const Tensor mask = both();
  return mask.dtype() == kBool ? ops::bitwise_not(mask) : mask;
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) {
  const int batch = options.batch_first ? 0 : 1, length = 1 - batch;
  const auto fits = [&](const Tensor& t, int64_t width) { return t.rank() == 3 && t.size(2) == width; };
  if (!fits(query, embed_dim) || !fits(key, options.kdim.value_or(embed_dim)) ||
      !fits(value, options.vdim.value_or(embed_dim)) || query.size(batch) != key.size(batch) ||
      key.size(batch) != value.size(batch) || key.size(length) != value.size(length))
    fail(absl::StrCat(
        "query, key and value must be ",
        options.batch_first ? "(B, L, E), (B, S, kdim) and (B, S, vdim)" : "(L, B, E), (S, B, kdim) and (S, B, vdim)",
        " with E = ", embed_dim, ", kdim = ", options.kdim.value_or(embed_dim),
        ", vdim = ", options.vdim.value_or(embed_dim), ", got ", to_string(query.sizes()), ", ", to_string(key.sizes()),
        " and ", to_string(value.sizes())));
  const int64_t B = query.size(batch), L = query.size(length), S = key.size(length), D = embed_dim / num_heads;
  std::vector<Tensor> qkv = project(query, key, value);
  for (Tensor& part : qkv)  // to (B, H, T, D)
    part = options.batch_first ? part.view({B, part.size(1), num_heads, D}).transpose(1, 2)
                               : part.view({part.size(0), B, num_heads, D}).permute({1, 2, 0, 3});
  const Tensor y = ops::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], joined(masks, B, L, S, qkv[0].dtype()),
                                                     {.causal = masks.is_causal, .dropout = dropout.rate()});
  return out_proj(options.batch_first ? y.transpose(1, 2).reshape({B, L, embed_dim})
                                      : y.permute({2, 0, 1, 3}).reshape({L, B, embed_dim}));
}

}  // namespace rondo::nn
