#include "rondo/modules/generation/decoding_cache.h"

#include <algorithm>

namespace rondo::nn {

KVCacheOptions decoding_cache(const CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                              const GenerationOptions& options) {
  KVCacheOptions cache = model.cache_options();
  int64_t longest = 0;
  for (const std::vector<int64_t>& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
  // The last new token is never fed to the model, so it needs no place. The size is rounded up to a multiple: a
  // compiled step is planned for one size of the cache, so texts of about the same length share a plan.
  constexpr int64_t kMultiple = 64;
  const int64_t needed = std::min(cache.max_length - longest, options.max_new_tokens - 1) + longest;
  cache.max_length = std::min(cache.max_length, (needed + kMultiple - 1) / kMultiple * kMultiple);
  cache.batch = std::ssize(prompts) * options.num_beams;
  cache.encoded = options.encoded;
  cache.dtype = options.cache_dtype.value_or(cache.dtype);
  return cache;
}

}  // namespace rondo::nn
