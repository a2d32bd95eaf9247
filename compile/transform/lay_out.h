// Chooses layouts for the images inside of a region, in default mode.
//
// Note [Chosen layouts]. Convolutions run channels last. If operands are in another layout, a convolution converts them
//   piece by piece, and converts its result back. So the result of a convolution is made channels last if a norm, a sum
//   or another convolution reads it, directly or after elementwise ops. (If only elementwise ops on the way to a result
//   of the region read it, it keeps its layout.) Values that are computed from it by ops that keep the layout
//   (keep_channels_last() of runtime/ops/channels_last.h) are channels last, too. Callers see the layouts of eager
//   execution: a convolution can read an input, or write a result, in any layout. So an image is converted at most
//   where it enters the region, and where it leaves it. Such a conversion costs more than one inside of a convolution,
//   which works in the caches. So layouts are chosen only if that saves a good part of the converted bytes. Measured
//   (Zen 4, 2 cores, f32, contiguous images; bench_cnn --model=resnet50): steps of a residual network of 53
//   convolutions as one region take 0.84 of the time. Regions of one block of three convolutions would take 1.05, and
//   are unchanged.
//
// A recording and its backward are laid out separately. The backward reads the forward's values in the layouts in which
// the forward made them. Exact mode chooses nothing, because it would change the order of sums over images.
#pragma once

#include <vector>

#include "rondo/compile/transform/joint.h"

namespace rondo::compile {

// Chooses layouts in a recording and its backward (null: there is none), if that pays. `needed`: the values of the
// recording that backwards read. Replaces them by the values of the new recording that backwards then read. Returns
// false if nothing changes.
bool lay_out(Graph& recorded, std::vector<ValueId>& needed, BackwardGraph* backward);

// How often the graph converts images from one layout to the other: in separate copies, which may be fused into
// kernels, and inside of convolutions.
struct Conversions {
  int copies = 0, in_products = 0;
  int64_t copied_bytes = 0, bytes_in_products = 0;  // bytes of the converted images
};
Conversions count_conversions(const Graph& graph);

}  // namespace rondo::compile
