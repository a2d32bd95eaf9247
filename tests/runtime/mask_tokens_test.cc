#include "rondo/runtime/data/mask_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo::data {
namespace {

using test::error_of;
using test::same_bits;

MaskTokensOptions some_options() { return {.mask_id = 4, .vocab_size = 1000, .special_ids = {1, 2}}; }

// The shares of the paper, on many tokens: each count is within five standard deviations.
TEST(MaskTokens, TheSharesOfThePaper) {
  constexpr int64_t kTokens = 40000;
  const Tensor ids = Tensor::full({4, kTokens / 4}, 7, {kI64}).to(default_device());
  Generator random(3);
  const MaskedTokens out = mask_tokens(ids, {}, some_options(), random);
  ASSERT_EQ(out.ids.sizes(), ids.sizes());
  ASSERT_EQ(out.targets.sizes(), ids.sizes());
  const std::vector<int64_t> seen = out.ids.to_vector<int64_t>(), targets = out.targets.to_vector<int64_t>();
  double chosen = 0, hidden = 0, kept = 0;
  int64_t largest = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (targets[i] == -100) {
      EXPECT_EQ(seen[i], 7);
      continue;
    }
    EXPECT_EQ(targets[i], 7);
    chosen += 1;
    hidden += seen[i] == 4;
    kept += seen[i] == 7;
    largest = std::max(largest, seen[i]);
  }
  const auto near = [](double count, double of, double p) {
    EXPECT_NEAR(count, of * p, 5 * std::sqrt(of * p * (1 - p)));
  };
  near(chosen, kTokens, 0.15);
  near(hidden, chosen, 0.8);
  near(kept, chosen, 0.1);
  near(chosen - hidden - kept, chosen, 0.1);
  EXPECT_GT(largest, 950);
  EXPECT_LT(largest, 1000);
}

TEST(MaskTokens, PaddingAndSpecialTokensStay) {
  const Tensor ids = Tensor::from<int64_t>({1, 5, 6, 2, 0, 0}, {1, 6}).to(default_device());
  MaskTokensOptions all = some_options();
  all.probability = all.hidden = 1;
  all.random = 0;
  Generator random(3);
  const MaskedTokens out = mask_tokens(ids, ops::not_equal(ids, int64_t{0}), all, random);
  EXPECT_EQ(out.ids.to_vector<int64_t>(), (std::vector<int64_t>{1, 4, 4, 2, 0, 0}));
  EXPECT_EQ(out.targets.to_vector<int64_t>(), (std::vector<int64_t>{-100, 5, 6, -100, -100, -100}));
}

TEST(MaskTokens, TheGeneratorDecides) {
  const Tensor ids = Tensor::arange(5, 500, 1, {kI32}).to(default_device());
  const auto run = [&](uint64_t seed) {
    Generator random(seed);
    return mask_tokens(ids, {}, some_options(), random);
  };
  const MaskedTokens a = run(1), again = run(1), other = run(2);
  EXPECT_TRUE(same_bits(a.ids, again.ids) && same_bits(a.targets, again.targets));
  EXPECT_FALSE(same_bits(a.targets, other.targets));
  EXPECT_EQ(a.ids.dtype(), kI64);
  Generator random(1);
  mask_tokens(ids, {}, some_options(), random);
  EXPECT_FALSE(same_bits(mask_tokens(ids, {}, some_options(), random).targets, a.targets)) << "the next batch";
}

TEST(MaskTokens, RefusesWhatMakesNoSense) {
  const Tensor ids = Tensor::full({1, 3}, 7, {kI64});
  const auto error = [&](const Tensor& tokens, const Tensor& mask, const MaskTokensOptions& options) {
    Generator random(1);
    return error_of([&] { mask_tokens(tokens, mask, options, random); });
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(error(ids.to(kF32), {}, some_options()), "ids must be i64 or i32"));
  EXPECT_TRUE(has(error({}, {}, some_options()), "ids must be i64 or i32"));
  EXPECT_TRUE(has(error(ids, ids, some_options()), "mask must be bool with the shape of ids, [1, 3], got i64[1, 3]"));
  MaskTokensOptions options = some_options();
  options.random = 0.3;
  EXPECT_TRUE(has(error(ids, {}, options), "hidden + random must be from 0 to 1"));
  options = some_options();
  options.mask_id = 1000;
  EXPECT_TRUE(has(error(ids, {}, options), "mask_id must be below vocab_size, got 1000 and 1000"));
}

}  // namespace
}  // namespace rondo::data
