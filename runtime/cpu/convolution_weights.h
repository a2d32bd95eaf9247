// Converts the weight of a convolution between the caller's layout and blocks of 16 x 16 channels, which oneDNN's
// kernels read and write in f32. oneDNN's own reorders took a quarter of a training step with small images: they read
// and write 7 GB/s per thread, measured on Zen 4 for the gradients of ResNet-50's weights. This code reaches 20 to 30
// GB/s.
#pragma once

#include <cstdint>

namespace rondo::cpu {

inline constexpr int64_t kWeightBlock = 16;

// A weight (groups, outputs, channels, taps) in two layouts. Plain data; steps are in elements.
struct WeightBlocks {
  int64_t groups = 1, outputs = 0, channels = 0, taps = 1;  // outputs and channels are multiples of kWeightBlock
  bool channels_last = false;  // the caller's layout is (outputs, taps, channels) in each group
  // True: in a block, 16 outputs are adjacent in memory; false: 16 channels are. Each tap of a block is dense.
  bool outputs_inner = false;
  int64_t group_step = 0, output_step = 0, channel_step = 0, tap_step = 0;  // from block to block

  int64_t numel() const { return groups * outputs * channels * taps; }
};

// Converts the caller's layout to blocks.
void pack_weight(const WeightBlocks& weight, const float* from, float* to);
// Adds `n` weights in blocks, `apart` elements from each other, in order, and writes the sum in the caller's layout,
// rounded to T: float or BFloat16. REQUIRES: outputs_inner.
template <class T> void unpack_weights(const WeightBlocks& weight, const float* from, int64_t n, int64_t apart, T* to);

}  // namespace rondo::cpu
