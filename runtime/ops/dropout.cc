// Dropout (Srivastava et al., 2014): y = x / (1 - p) where a random number is at least p, else 0.
//
// The stream's state (seed, offset) is an input tensor, not an attribute: a recorded region then takes it as data, and
// the next step's numbers need no new recording. No mask is stored: dropout is linear in x, so its gradient is dropout
// of the gradient with the same state.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/random.h"
#include "rondo/runtime/recorder.h"

namespace rondo::ops {
namespace {

// Elements drawn together: 16 counters of four words each, so that the rounds fill a vector.
constexpr int kCounters = 16, kGroup = 4 * kCounters;

// Word k of counter j goes to element 4 j + k of the group.
inline void draw_group(uint64_t seed, uint64_t offset, uint64_t first_counter, uint32_t (&words)[kGroup]) {
  uint32_t w[4][kCounters];
  for (int j = 0; j < kCounters; ++j) {
    const std::array<uint32_t, 4> bits = philox(seed, first_counter + static_cast<uint64_t>(j), offset);
    for (int k = 0; k < 4; ++k) w[k][j] = bits[static_cast<size_t>(k)];
  }
  for (int j = 0; j < kCounters; ++j)
    for (int k = 0; k < 4; ++k) words[4 * j + k] = w[k][j];
}

void dropout_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor x = context.in(0).contiguous(), state = context.in(1).contiguous();
  Tensor& out = context.out();
  const uint64_t seed = static_cast<uint64_t>(state.data<int64_t>()[0]);
  const uint64_t offset = static_cast<uint64_t>(state.data<int64_t>()[1]);
  const double p = context.attrs.floats[0];
  const int64_t n = out.numel();
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = cpu::ComputeType<T>;
    const T* from = reinterpret_cast<const T*>(x.impl()->data());
    T* to = reinterpret_cast<T*>(out.impl()->data());
    // A p of 1 drops everything, whatever the words are.
    if (p == 1) return static_cast<void>(std::fill_n(to, n, T{}));
    const C scale = static_cast<C>(1.0 / (1.0 - p));
    // On integers: a word w, as a number in [0, 1), is at least p.
    const uint32_t threshold = static_cast<uint32_t>(std::min(p * 0x1p32, 4294967295.0));
    parallel_for((n + kGroup - 1) / kGroup, cpu::kElementwiseGrain / kGroup / 4, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        uint32_t words[kGroup];
        draw_group(seed, offset, static_cast<uint64_t>(group) * kCounters, words);
        const int64_t start = group * kGroup;
        const int count = static_cast<int>(std::min<int64_t>(kGroup, n - start));
        const auto one = [&](int i) {
          // A dropped NaN or infinity is 0, too.
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

}  // namespace

// Inputs x, state i64 (2) = {seed, offset}. floats: {p}.
constexpr OpDef kDropout = {
    .name = "dropout",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          if (c.dtype(1) != kI64 || !(c.sizes(1) == Dims{2})) c.fail("the random state must be i64 [2]");
          if (!(c.scalar(0) >= 0 && c.scalar(0) <= 1)) c.fail(absl::StrCat("p must be in [0, 1], got ", c.scalar(0)));
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .kernel = {&dropout_kernel},
    .grad =
        [](const GradContext& g) {
          g.set(0, call(kDropout, {g.grad_out(), g.input(1)}, g.attrs()));
        },
};

Tensor dropout(TensorArg x, double p, Generator* generator) {
  Generator& source = generator ? *generator : default_generator();
  const int64_t seed = static_cast<int64_t>(source.seed()), offset = static_cast<int64_t>(source.next_offset());
  const Tensor state = Tensor::from<int64_t>({seed, offset}, {2});
  return call(kDropout, {x, {state, x.where}}, {.floats = {p}});
}

}  // namespace rondo::ops
