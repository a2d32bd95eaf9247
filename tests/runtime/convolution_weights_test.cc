// Weights of convolutions to blocks and back, against the formulas of the layouts.
#include "rondo/runtime/cpu/convolution_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "rondo/runtime/base/dtype.h"

namespace rondo::cpu {
namespace {

// Blocks of 16 x 16 follow each other as (group, output block, channel block, tap), or with the channel blocks first.
WeightBlocks blocks(int64_t groups, int64_t outputs, int64_t channels, int64_t taps, bool last, bool outputs_inner,
                    bool channels_first) {
  constexpr int64_t kBlock = kWeightBlock * kWeightBlock;
  WeightBlocks w{.groups = groups,
                 .outputs = outputs,
                 .channels = channels,
                 .taps = taps,
                 .channels_last = last,
                 .outputs_inner = outputs_inner,
                 .group_step = outputs * channels * taps,
                 .tap_step = kBlock};
  w.output_step = kBlock * taps * (channels_first ? 1 : channels / kWeightBlock);
  w.channel_step = kBlock * taps * (channels_first ? outputs / kWeightBlock : 1);
  return w;
}
int64_t given_place(const WeightBlocks& w, int64_t g, int64_t o, int64_t c, int64_t tap) {
  const int64_t row = (g * w.outputs + o) * w.channels * w.taps;
  return row + (w.channels_last ? tap * w.channels + c : c * w.taps + tap);
}
int64_t packed_place(const WeightBlocks& w, int64_t g, int64_t o, int64_t c, int64_t tap) {
  const int64_t o_in = o % kWeightBlock, c_in = c % kWeightBlock;
  return g * w.group_step + o / kWeightBlock * w.output_step + c / kWeightBlock * w.channel_step + tap * w.tap_step +
         (w.outputs_inner ? c_in * kWeightBlock + o_in : o_in * kWeightBlock + c_in);
}
template <class Fn> void for_each_element(const WeightBlocks& w, Fn fn) {
  for (int64_t g = 0; g < w.groups; ++g)
    for (int64_t o = 0; o < w.outputs; ++o)
      for (int64_t c = 0; c < w.channels; ++c)
        for (int64_t tap = 0; tap < w.taps; ++tap) fn(given_place(w, g, o, c, tap), packed_place(w, g, o, c, tap));
}
template <class Fn> void for_each_layout(Fn fn) {
  struct Sizes {
    int64_t groups, outputs, channels, taps;
  };
  // The last is large enough to be written past the caches.
  for (const Sizes& s : {Sizes{1, 16, 32, 1}, Sizes{1, 48, 16, 9}, Sizes{3, 32, 16, 4}, Sizes{1, 16, 16, 49},
                         Sizes{2, 16, 48, 25}, Sizes{1, 256, 256, 9}})
    for (const bool last : {false, true})
      for (const bool channels_first : {false, true})
        for (const bool outputs_inner : {false, true})
          fn(blocks(s.groups, s.outputs, s.channels, s.taps, last, outputs_inner, channels_first));
}

TEST(ConvolutionWeights, ArePacked) {
  for_each_layout([](const WeightBlocks& w) {
    const auto n = static_cast<size_t>(w.numel());
    std::vector<float> from(n), to(n, -1);
    for (size_t i = 0; i < n; ++i) from[i] = static_cast<float>(i);
    pack_weight(w, from.data(), to.data());
    int64_t wrong = 0;
    for_each_element(w, [&](int64_t given, int64_t packed) {
      wrong += to[static_cast<size_t>(packed)] != from[static_cast<size_t>(given)];
    });
    EXPECT_EQ(wrong, 0) << w.groups << ' ' << w.outputs << ' ' << w.channels << ' ' << w.taps;
  });
}

// Sums are added in the order of the parts: floats show it.
TEST(ConvolutionWeights, SumsAreUnpacked) {
  for_each_layout([](const WeightBlocks& w) {
    if (!w.outputs_inner) return;
    const int64_t n = w.numel(), parts = 3;
    std::vector<float> from(static_cast<size_t>(parts * n)), to(static_cast<size_t>(n), -1);
    for (size_t i = 0; i < from.size(); ++i) from[i] = 1.0f / static_cast<float>(i + 1);
    unpack_weights(w, from.data(), parts, n, to.data());
    int64_t wrong = 0;
    for_each_element(w, [&](int64_t given, int64_t packed) {
      float sum = from[static_cast<size_t>(packed)];
      for (int64_t k = 1; k < parts; ++k) sum += from[static_cast<size_t>(k * n + packed)];
      wrong += to[static_cast<size_t>(given)] != sum;
    });
    EXPECT_EQ(wrong, 0) << w.groups << ' ' << w.outputs << ' ' << w.channels << ' ' << w.taps;
    std::vector<BFloat16> halves(static_cast<size_t>(n));
    unpack_weights(w, from.data(), parts, n, halves.data());
    for (int64_t i = 0; i < n; ++i)
      wrong += static_cast<float>(halves[static_cast<size_t>(i)]) !=
               static_cast<float>(BFloat16(to[static_cast<size_t>(i)]));
    EXPECT_EQ(wrong, 0) << "in bf16";
  });
}

}  // namespace
}  // namespace rondo::cpu
