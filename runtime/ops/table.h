// What op definitions share: their declarations, for the table and for ops that build on another family's, and masks.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// Masks of SavedSpec.
inline constexpr uint32_t kFirst = 1, kSecond = 2, kThird = 4;

// elementwise.cc
extern const OpDef kAdd, kSub, kMul, kDiv, kDivGrad, kAddScalar, kMulScalar, kRsubScalar, kRdivScalar, kRdivScalarGrad,
    kNeg;
// comparison.cc
extern const OpDef kEqual, kNotEqual, kLess, kLessEqual, kWhere;
// cast.cc
extern const OpDef kCast, kCopy, kFill;
// math.cc
extern const OpDef kMaximum, kMinimum, kAbs, kSign, kExp, kLog, kSqrt, kRsqrt, kRsqrtGrad, kTanh, kTanhGrad, kErf,
    kSigmoid, kSin, kCos, kLog1p, kExpm1, kPowScalar, kPowScalarGrad;
// activation.cc
extern const OpDef kRelu, kReluGrad, kGeluTanh, kGeluTanhGrad, kGeluErf, kGeluErfGrad, kSilu, kSiluGrad, kSoftplus,
    kSoftplusGrad, kLeakyRelu, kLeakyReluGrad, kClamp, kClampGrad;
// view.cc
extern const OpDef kView, kPermute, kExpand, kSlice, kSliceGrad, kSelect, kSplit, kCat;
// triangle.cc
extern const OpDef kTril, kTriu;
// reduction.cc
extern const OpDef kSum, kMax, kMin;
// predicate.cc
extern const OpDef kIsFinite, kIsInf, kIsNan, kAnyTrue, kAllTrue;
// statistics.cc
extern const OpDef kVar, kStd;
// matmul.cc
extern const OpDef kMatmul, kLinear;
// norm.cc
extern const OpDef kLayerNorm, kLayerNormGrad, kRMSNorm, kRMSNormGrad, kSoftmax, kSoftmaxGrad, kLogSoftmax,
    kLogSoftmaxGrad;
// attention.cc
extern const OpDef kAttention, kAttentionGrad;
// embedding.cc, loss.cc
extern const OpDef kEmbedding, kEmbeddingGrad, kEmbeddingGradOnto, kIndexSelect, kCrossEntropy, kCrossEntropyGrad,
    kLinearCrossEntropy, kLinearCrossEntropyGrad, kScale;
// pointwise_loss.cc
extern const OpDef kMSELoss, kL1Loss, kHuberLoss, kBCEWithLogits;
// indexing.cc
extern const OpDef kGather, kScatter, kScatterSum, kCumsum, kArgmax, kArgsort, kTopk;
// rotary.cc
extern const OpDef kRotary;
// dropout.cc
extern const OpDef kDropout;
// For infer functions: fails unless input `state` is a random state (Note [Random state]) and p is a probability.
void check_dropout(InferContext& c, int state, double p);
// Throws Error unless p is a probability. Call it before next_random_state(): a wrong call then draws nothing.
void require_probability(const char* op, double p, std::source_location where);

}  // namespace rondo::ops
