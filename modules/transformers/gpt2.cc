#include "rondo/modules/transformers/gpt2.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/random/random.h"

namespace rondo::nn {
namespace {

// Returns table(0 ... n - 1). Outside of recordings this is a view of the first rows, so that the gradient needs no
// lookup of rows. In a recording the rows are looked up by number, because n may be another one in the next call.
Tensor first_rows(Embedding& table, int64_t n) {
  if (!table.is_plain() || active_recorder() != nullptr) return table(Tensor::arange(n, {kI64, table.weight.device()}));
  return n == table.weight.size(0) ? table.weight : ops::slice(table.weight, 0, {0, n});
}

}  // namespace

GPT2::GPT2(GPT2Config config, uint64_t seed, const SkipInit&) : config(config) {
  if (SkipInit::without_memory()) return;
  const FloatingPointScope floating_point;
  const NoGrad off;
  Generator generator(seed);
  const double residual_std = 0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  for (auto& [name, parameter] : named_parameters()) {
    if (parameter.rank() >= 2)
      parameter.copy_(Tensor::randn(parameter.sizes(), parameter.device(), &generator)
                          .mul_(name.ends_with("c_proj.weight") ? residual_std : 0.02));
    else parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0);
  }
}

Tensor GPT2::features(const Tensor& idx, const Tensor& positions, const Tensor& encoded, const Tensor& mask) {
  const auto fail = [&](const std::string& what, const Tensor& t) {
    throw_op_error("GPT2", absl::StrCat(what, ", got ", std::string(name_of(t.dtype())), to_string(t.sizes())),
                   std::source_location::current());
  };
  if (idx.rank() != 2 || !is_index(idx.dtype())) fail("idx must be i64 or i32 (B, T)", idx);
  if (idx.size(1) > config.block_size) fail(absl::StrCat("T must be at most block_size = ", config.block_size), idx);
  if (mask.defined() && (mask.dtype() != kBool || !(mask.sizes() == idx.sizes())))
    fail("mask must be bool with the shape of idx, " + to_string(idx.sizes()), mask);
  if (mask.defined() && positions.defined()) fail("there may be positions or a mask, not both", mask);
  const int64_t T = idx.size(1);
  if (positions.defined()) check_positions("GPT2", idx, positions);
  const Tensor seen = mask.defined() ? mask.view({idx.size(0), 1, 1, T}) : first_keys(T, positions, 0, idx.device());
  Tensor x = drop(wte(idx) + (positions.defined() ? wpe(positions) : first_rows(wpe, T)));  // (B, T, C)
  for (TransformerBlock& block : h)
    x = seen.defined() ? block(x, KVLayer(), seen, encoded) : encoded.defined() ? block(x, encoded) : block(x);
  return ln_f(x);
}

Tensor GPT2::features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) {
  check_cached_call("GPT2", idx, cache);
  KVCache::Pass pass(cache, idx.size(1), counts);
  Tensor x = drop(wte(idx) + wpe(pass.positions()));  // (B, T, C)
  for (int64_t i = 0; i < h.size(); ++i) x = h[i](x, pass.layer(i));
  x = ln_f(x);
  pass.finish();
  return x;
}

Tensor GPT2::head(const Tensor& features) { return ops::linear(features, wte.weight, Tensor()); }

KVCacheOptions GPT2::cache_options() const {
  return {.layers = config.n_layer,
          .kv_heads = config.n_head,
          .max_length = config.block_size,
          .head_dim = config.n_embd / config.n_head,
          .dtype = cached_dtype(wte.weight.dtype()),
          .device = wte.weight.device(),
          .encoded_width = config.cross_attention ? config.n_embd : 0};
}

Tensor GPT2::forward(const Tensor& idx, const Tensor& positions, const Tensor& encoded, const Tensor& mask) {
  return head(features(idx, positions, encoded, mask));
}

Tensor GPT2::loss(const Tensor& idx, const Tensor& targets, std::source_location where) {
  return loss(idx, targets, Tensor(), where);
}
Tensor GPT2::loss(const Tensor& idx, const Tensor& targets, const Tensor& positions, std::source_location where) {
  const auto logits = [&] { return positions.defined() ? (*this)({idx, where}, positions) : (*this)({idx, where}); };
  const auto below = [&] { return features(idx, positions); };
  return NextTokenLoss{*this, wte.weight, config.whole_logits, logits, below}(idx, targets, where);
}

Tensor GPT2::generate(const Tensor& idx, int64_t max_new_tokens, double temperature, int64_t top_k,
                      Generator* generator) {
  if (!idx.defined() || idx.rank() != 2 || !is_index(idx.dtype()) || idx.size(0) == 0 || idx.size(1) == 0)
    throw Error("GPT2::generate: idx must be i64 or i32 (B, T) and not empty");
  if (!(temperature >= 0))
    throw Error(absl::StrCat("GPT2::generate: temperature must not be negative, got ", temperature));
  const int64_t B = idx.size(0), T = idx.size(1), more = std::max<int64_t>(max_new_tokens, 0);
  const std::vector<int64_t> tokens = idx.to_vector<int64_t>();
  std::vector<std::vector<int64_t>> rows;
  for (int64_t b = 0; b < B; ++b) rows.emplace_back(tokens.begin() + b * T, tokens.begin() + (b + 1) * T);
  const std::vector<Generation> made = nn::generate(*this, rows,
                                                    {.max_new_tokens = more,
                                                     .temperature = temperature,
                                                     .top_k = std::max<int64_t>(top_k, 0),
                                                     .generator = generator,
                                                     .slide = true});
  std::vector<int64_t> all;
  for (size_t b = 0; b < rows.size(); ++b) {
    all.insert(all.end(), rows[b].begin(), rows[b].end());
    all.insert(all.end(), made[b].tokens.begin(), made[b].tokens.end());
  }
  return Tensor::from(all, {B, T + more}, idx.device());
}

}  // namespace rondo::nn
