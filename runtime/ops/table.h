// Declarations of the op definitions, for the table and for ops that build on another family's.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// elementwise.cc
extern const OpDef kAdd, kSub, kMul, kDiv, kAddScalar, kMulScalar, kRsubScalar, kRdivScalar, kNeg, kExp, kLog, kSqrt, kRsqrt,
    kEqual, kNotEqual, kLess, kLessEqual, kWhere, kTanh, kErf, kSigmoid, kRelu, kReluGrad, kGeluTanh, kGeluTanhGrad, kGeluErf, kGeluErfGrad, kCast, kCopy, kFill;
// view.cc
extern const OpDef kView, kPermute, kExpand, kSlice, kSliceGrad, kSelect, kSplit, kCat;
// reduction.cc
extern const OpDef kSum, kMax;
// matmul.cc
extern const OpDef kMatmul, kLinear;
// norm.cc
extern const OpDef kLayerNorm, kLayerNormGrad, kSoftmax, kSoftmaxGrad, kLogSoftmax, kLogSoftmaxGrad;
// attention.cc
extern const OpDef kAttention, kAttentionGrad;
// embedding.cc, loss.cc
extern const OpDef kEmbedding, kEmbeddingGrad, kCrossEntropy, kCrossEntropyGrad;
// dropout.cc
extern const OpDef kDropout;

}  // namespace rondo::ops
