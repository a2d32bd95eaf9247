// Shared by op definitions: the families' lists, the ops that more than one file names, and masks.
#pragma once

#include <initializer_list>

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// Masks of SavedSpec.
inline constexpr uint32_t kFirst = 1, kSecond = 2, kThird = 4;

// The ops of each family, listed at the end of its file. A constant, so the library needs no static constructor.
using OpList = std::initializer_list<const OpDef*>;
extern const OpList kElementwiseOps, kComparisonOps, kBitwiseOps, kCastOps, kMathOps, kActivationOps, kViewOps,
    kTriangleOps, kReductionOps, kPredicateOps, kStatisticsOps, kMatmulOps, kNormOps, kAttentionOps, kEmbeddingOps,
    kLossOps, kPointwiseLossOps, kIndexingOps, kSegmentOps, kRotaryOps, kDropoutOps, kRandomOps, kWindowOps,
    kFactoryOps, kConvolutionOps, kPoolingOps, kInterpolationOps, kCollectiveOps, kChannelNormOps, kPixelLossOps;

// Ops that are used in another file, or in their own file before their definition. Other ops are not declared.
// elementwise.cc
extern const OpDef kAdd, kSub, kMul, kAddScalar;
// comparison.cc
extern const OpDef kEqualScalar, kLessScalar, kGreaterScalar;
// cast.cc
extern const OpDef kCast, kCopy, kFill;
// activation.cc
extern const OpDef kGeluTanh;
// view.cc
extern const OpDef kSliceGrad, kCat;
// window.cc
extern const OpDef kStridedView, kWindowCopy, kOverwrite, kRevalue;
// reduction.cc
extern const OpDef kSum, kMax;
// predicate.cc
extern const OpDef kAnyTrue, kAllTrue;
// matmul.cc
extern const OpDef kMatmul, kLinear;
// convolution.cc
extern const OpDef kConv2d, kConv2dGradInput, kConv2dGradWeight;
// interpolation.cc
extern const OpDef kInterpolateGrad;
// norm.cc
extern const OpDef kLayerNorm, kLayerNormGrad, kRMSNorm, kRMSNormGrad;
// statistics.cc
extern const OpDef kVarMean;
// channel_norm.cc
extern const OpDef kBatchNorm, kBatchNormGrad, kGroupNorm, kGroupNormGrad;
// attention.cc
extern const OpDef kAttention, kAttentionGrad;
// embedding.cc
extern const OpDef kEmbedding, kEmbeddingGrad, kEmbeddingGradOnto, kIndexSelect;
// loss.cc
extern const OpDef kCrossEntropy, kCrossEntropyGrad, kLinearCrossEntropy, kLinearCrossEntropyGrad, kScale;
// indexing.cc
extern const OpDef kGather, kPick, kScatter, kScatterSum, kArgmax, kArgsort, kTopk;
// segments.cc
extern const OpDef kSortSegments, kSumSegments;
// collective.cc
extern const OpDef kAllReduceSum;
// rotary.cc
extern const OpDef kRotary;
// dropout.cc
extern const OpDef kDropout;
// The attributes of dropout: ints {increment}; floats {p, the factor of kept elements}.
Attrs dropout_attrs(SymFloat p, int64_t increment);
// For infer functions. Both fail unless input `state` is a random state (Note [Random state]); check_dropout also fails
// unless p is a probability.
void check_random_state(InferContext& c, int state);
void check_dropout(InferContext& c, int state, SymFloat p);
// Throws Error unless p is a probability. Call it before next_random_state(): a wrong call then draws nothing.
void require_probability(const char* op, double p, std::source_location where);

}  // namespace rondo::ops
