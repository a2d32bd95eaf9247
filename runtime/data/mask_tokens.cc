#include "rondo/runtime/data/mask_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/data/token_data.h"

namespace rondo::data {
namespace {

void check(const Tensor& ids, const Tensor& mask, const MaskTokensOptions& o) {
  const auto fail = [](const std::string& what) { throw Error("mask_tokens: " + what); };
  if (!ids.defined() || !is_index(ids.dtype())) fail("ids must be i64 or i32");
  if (mask.defined() && (mask.dtype() != kBool || !(mask.sizes() == ids.sizes())))
    fail(absl::StrCat("mask must be bool with the shape of ids, ", to_string(ids.sizes()), ", got ",
                      std::string(name_of(mask.dtype())), to_string(mask.sizes())));
  const auto is_share = [](double p) { return p >= 0 && p <= 1; };
  if (!is_share(o.probability) || !is_share(o.hidden) || !is_share(o.random) || o.hidden + o.random > 1 + 1e-9)
    fail(absl::StrCat("probability, hidden, random, and hidden + random must be from 0 to 1, got ", o.probability, ", ",
                      o.hidden, " and ", o.random));
  if (o.vocab_size < 1 || o.mask_id < 0 || o.mask_id >= o.vocab_size)
    fail(absl::StrCat("mask_id must be below vocab_size, got ", o.mask_id, " and ", o.vocab_size));
}

}  // namespace

MaskedTokens mask_tokens(const Tensor& ids, const Tensor& mask, const MaskTokensOptions& options, Generator& random) {
  check(ids, mask, options);
  std::vector<int64_t> seen = ids.to_vector<int64_t>();
  const Dims n{static_cast<int64_t>(seen.size())};
  const std::vector<uint8_t> real = mask.defined() ? mask.to(kU8).to_vector<uint8_t>()
                                                   : std::vector<uint8_t>(seen.size(), 1);
  const auto draws = [&] { return Tensor::rand(n, {kF32, kCPU}, &random).to_vector<float>(); };
  const std::vector<float> chance = draws(), kind = draws();
  const std::vector<int64_t> others =
      Tensor::randint(0, options.vocab_size, n, {kI64, kCPU}, &random).to_vector<int64_t>();
  std::vector<int64_t> targets(seen.size(), kIgnoreIndex);
  for (size_t i = 0; i < seen.size(); ++i) {
    const bool special = std::find(options.special_ids.begin(), options.special_ids.end(), seen[i]) !=
                         options.special_ids.end();
    if (real[i] == 0 || special || !(chance[i] < options.probability)) continue;
    targets[i] = seen[i];
    if (kind[i] < options.hidden) seen[i] = options.mask_id;
    else if (kind[i] < options.hidden + options.random) seen[i] = others[i];
  }
  return {Tensor::from(seen, ids.sizes(), kCPU), Tensor::from(targets, ids.sizes(), kCPU)};
}

}  // namespace rondo::data
