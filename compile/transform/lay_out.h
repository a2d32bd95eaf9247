// Layouts that default mode chooses for the images inside of a region.
//
// Note [Chosen layouts]. Convolutions run channels last: one whose operands lie otherwise converts them, piece by
// piece, and converts its result back. So an image that a convolution makes and that more than a last elementwise op
// reads (a norm, a sum, another convolution) is made channels last, and so is what is computed from it by ops that keep
// the layout (keep_channels_last() of runtime/ops/channels_last.h). What callers see lies as in eager execution: a
// convolution reads an input, or writes a result, as it lies. So an image is converted at most where it enters the
// region, and where it leaves it. Such a conversion is dearer than one inside of a convolution, which works in the
// caches: layouts are chosen where they save a good part of the bytes that are converted. Measured (Zen 4, 2 cores,
// f32, images in the usual layout; bench_cnn --model=resnet50): steps of a residual network of 53 convolutions as one
// region take 0.84 of the time; regions of one block of three convolutions would take 1.05 of it, and stay as they are.
//
// A recording and its backward are each laid out by itself, and what the backward reads of the forward lies as the
// forward made it. Exact mode chooses nothing: eager execution makes sums over images in another order.
#pragma once

#include <vector>

#include "rondo/compile/transform/joint.h"

namespace rondo::compile {

// Lays out a recording and its backward (null: there is none), where that pays. `needed`: values of the recording that
// backwards read; from then on, what stands for them. Returns false where nothing changes.
bool lay_out(Graph& recorded, std::vector<ValueId>& needed, BackwardGraph* backward);

// How often the graph converts images from one layout to the other: in calls of their own, which kernels may do on the
// way, and inside of convolutions.
struct Conversions {
  int copies = 0, in_products = 0;
  int64_t copied_bytes = 0, bytes_in_products = 0;  // of the images
};
Conversions count_conversions(const Graph& graph);

}  // namespace rondo::compile
