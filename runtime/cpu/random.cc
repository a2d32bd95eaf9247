// Tensors of random numbers. Each element has its own counter, so any split over threads gives the same numbers.
#include <algorithm>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/philox.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/random_draw.h"
#include "rondo/runtime/random/random.h"

namespace rondo::cpu {
namespace {

constexpr int kGroup = 16;  // counters that are drawn together

struct Stream {
  uint64_t seed, offset;
};
Stream stream_of(const KernelContext& context, int64_t increment) {
  RecorderScope run(nullptr);
  const Tensor state = context.in(0).contiguous();
  const int64_t* const words = reinterpret_cast<const int64_t*>(state.impl()->data());
  return {static_cast<uint64_t>(words[0]), static_cast<uint64_t>(words[1]) + static_cast<uint64_t>(increment)};
}

// Sets each element of the dense output to number(first word, second word).
template <class T, class Number> void draw_each(Tensor& out, Stream stream, Number number) {
  T* const to = reinterpret_cast<T*>(out.impl()->data());
  const int64_t n = out.numel();
  parallel_for((n + kGroup - 1) / kGroup, kElementwiseGrain / kGroup / 4, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      PhiloxWords<kGroup> words[4];
      draw<kGroup>(stream.seed, stream.offset, counters_from<kGroup>(static_cast<uint64_t>(group * kGroup), 1), words);
      T numbers[kGroup];
      for (int i = 0; i < kGroup; ++i) numbers[i] = ops::convert<T>(number(words[0][i], words[1][i]));
      std::copy_n(numbers, std::min<int64_t>(kGroup, n - group * kGroup), to + group * kGroup);
    }
  });
}

}  // namespace

void draw_kernel(const KernelContext& context) {
  const Stream stream = stream_of(context, context.attrs.ints[1]);
  const auto distribution = static_cast<ops::Distribution>(context.attrs.ints[0]);
  visit_floating(context.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (distribution == ops::Distribution::kUniform)
      return draw_each<T>(context.out(), stream, [](uint32_t a, uint32_t) { return uniform_from_bits(a); });
    draw_each<T>(context.out(), stream, [](uint32_t a, uint32_t b) {
      return ops::normal_of(static_cast<double>(uniform_from_bits(a)), static_cast<double>(uniform_from_bits(b)));
    });
  });
}

void draw_integers_kernel(const KernelContext& context) {
  const auto& ints = context.attrs.ints;
  const auto low = static_cast<uint64_t>(ints[2]), span = static_cast<uint64_t>(ints[3]);
  const Stream stream = stream_of(context, ints[0]);
  visit_dtype(context.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    draw_each<T>(context.out(), stream, [=](uint32_t a, uint32_t b) {
      __extension__ typedef unsigned __int128 Wide;
      const uint64_t word = static_cast<uint64_t>(a) << 32 | b;
      return static_cast<int64_t>(low + static_cast<uint64_t>((static_cast<Wide>(word) * span) >> 64));
    });
  });
}

}  // namespace rondo::cpu
