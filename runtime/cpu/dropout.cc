// Dropout. The random word of an element depends on (seed, offset, index): Note [Random state] in random_state.h.
#include <algorithm>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/philox.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::cpu {
namespace {

// The elements that are drawn together: 16 counters of four words each, which fill a vector.
constexpr int kCounters = 16, kGroup = 4 * kCounters;

// Draws the random words of a group. Word k of counter j goes to element 4 j + k.
inline void draw_group(uint64_t seed, uint64_t offset, uint64_t first_counter, uint32_t (&words)[kGroup]) {
  PhiloxWords<kCounters> w[4];
  draw<kCounters>(seed, offset, counters_from<kCounters>(first_counter, 1), w);
  // Interleaves the four vectors by two perfect shuffles: first 0 with 2 and 1 with 3, then the results.
  using Lanes = std::make_integer_sequence<int, kCounters>;
  const PhiloxWords<kCounters> even[2] = {detail::zip_low(w[0], w[2], Lanes{}), detail::zip_high(w[0], w[2], Lanes{})};
  const PhiloxWords<kCounters> odd[2] = {detail::zip_low(w[1], w[3], Lanes{}), detail::zip_high(w[1], w[3], Lanes{})};
  for (int half = 0; half < 2; ++half) {
    const PhiloxWords<kCounters> both[2] = {detail::zip_low(even[half], odd[half], Lanes{}),
                                            detail::zip_high(even[half], odd[half], Lanes{})};
    __builtin_memcpy(words + half * kGroup / 2, both, sizeof(both));
  }
}

}  // namespace

void dropout_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor x = context.in(0).contiguous(), state = context.in(1).contiguous();
  Tensor& out = context.out();
  const int64_t* stream = reinterpret_cast<const int64_t*>(state.impl()->data());
  const uint64_t seed = static_cast<uint64_t>(stream[0]);
  const uint64_t offset = static_cast<uint64_t>(stream[1]) + static_cast<uint64_t>(context.attrs.ints[0]);
  const double p = context.attrs.floats[0];
  const int64_t n = out.numel();
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* from = reinterpret_cast<const T*>(x.impl()->data());
    T* to = reinterpret_cast<T*>(out.impl()->data());
    // p = 1 drops every element.
    if (p == 1) return static_cast<void>(std::fill_n(to, n, T{}));
    const DropoutRule rule(p);
    const C scale = static_cast<C>(rule.factor);
    const uint32_t threshold = rule.threshold;
    parallel_for((n + kGroup - 1) / kGroup, kElementwiseGrain / kGroup / 4, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        uint32_t words[kGroup];
        draw_group(seed, offset, static_cast<uint64_t>(group) * kCounters, words);
        const int64_t start = group * kGroup;
        const int count = static_cast<int>(std::min<int64_t>(kGroup, n - start));
        const auto one = [&](int i) {
          // A select, so that a dropped NaN or infinity becomes 0, too.
          const C value = static_cast<C>(from[start + i]) * scale;
          to[start + i] = static_cast<T>(words[i] >= threshold ? value : C(0));
        };
        if (count == kGroup) {
          for (int i = 0; i < kGroup; ++i) one(i);
        } else {
          for (int i = 0; i < count; ++i) one(i);
        }
      }
    });
  });
}

}  // namespace rondo::cpu
