#include "rondo/modules/generation/causal_lm.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::nn {

DType CausalLM::cached_dtype(DType weights) { return amp::autocast_dtype().value_or(weights); }

void CausalLM::check_cached_call(const char* model, const Tensor& idx, const KVCache& cache) const {
  const KVCacheOptions mine = cache_options(), &given = cache.options();
  if (!idx.defined() || idx.rank() != 2 || !is_index(idx.dtype()) || idx.size(0) != given.batch)
    throw Error(absl::StrCat(model, ": idx must be i64 or i32 (B, T) with the cache's B = ", given.batch, ", got ",
                             idx.defined() ? absl::StrCat(std::string(name_of(idx.dtype())), to_string(idx.sizes()))
                                           : "an undefined tensor"));
  if (given.layers != mine.layers || given.kv_heads != mine.kv_heads || given.head_dim != mine.head_dim ||
      given.encoded_width != mine.encoded_width)
    throw Error(absl::StrCat(model, ": the cache is for another model: it has ", given.layers, " layers, ",
                             given.kv_heads, " heads, head_dim ", given.head_dim, " and encoded_width ",
                             given.encoded_width, "; this model needs ", mine.layers, ", ", mine.kv_heads, ", ",
                             mine.head_dim, " and ", mine.encoded_width));
  if (given.device != mine.device)
    throw Error(absl::StrCat(model, ": the cache is on ", to_string(given.device), " and the model on ",
                             to_string(mine.device), "; make it with .device = ", to_string(mine.device),
                             ", or from cache_options()"));
  if (given.max_length > mine.max_length)
    throw Error(absl::StrCat(model, ": the cache has room for ", given.max_length, " tokens, but the model has ",
                             mine.max_length, " positions; make it with max_length of at most that"));
}

namespace {

// These two check what the functions of a user's model return.
const Tensor& checked_features(const Tensor& x, const Tensor& idx) {
  if (!x.defined() || x.rank() != 3 || x.size(0) != idx.size(0) || x.size(1) != idx.size(1))
    throw Error(absl::StrCat("CausalLM::features must return (B, T, C) for idx ", to_string(idx.sizes()), ", got ",
                             x.defined() ? to_string(x.sizes()) : "an undefined tensor"));
  return x;
}
// `sizes`: the sizes of the features. The logits have the same sizes, except for the last one.
Tensor checked_logits(const Tensor& logits, const Dims& sizes) {
  bool fits = logits.defined() && logits.rank() == sizes.rank() && logits.size(-1) > 0;
  for (int i = 0; fits && i + 1 < sizes.rank(); ++i) fits = logits.size(i) == sizes[i];
  if (!fits)
    throw Error(absl::StrCat("CausalLM::head must return (..., V) with V > 0 for ", to_string(sizes), ", got ",
                             logits.defined() ? to_string(logits.sizes()) : "an undefined tensor"));
  return logits;
}

}  // namespace

Tensor CausalLM::cached_logits(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) {
  const Tensor x = checked_features(features(idx, cache, counts), idx);
  return checked_logits(head(x), x.sizes());
}

Tensor CausalLM::next_logits(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) {
  const Tensor x = checked_features(features(idx, cache, counts), idx);  // (B, T, C)
  const auto logits_of = [&](const Tensor& last) { return checked_logits(head(last), last.sizes()); };
  const int64_t B = x.size(0), T = x.size(1);
  if (std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == T; }))
    return logits_of(x.select(1, T - 1));
  std::vector<int64_t> last;
  for (int64_t row = 0; row < B; ++row)
    last.push_back(row * T + std::max<int64_t>(0, counts[static_cast<size_t>(row)] - 1));
  return logits_of(ops::index_select(x.reshape({B * T, x.size(2)}), 0, Tensor::from(last, {B}, x.device())));
}

}  // namespace rondo::nn
