// The explicit list of ops. An op's position is its id in recordings, so new ones go at the end of their family.
#include "rondo/runtime/ops/table.h"

#include <cstring>

namespace rondo {
namespace {

using namespace ops;

constexpr const OpDef* kTable[] = {&kAdd,
                                   &kSub,
                                   &kMul,
                                   &kDiv,
                                   &kAddScalar,
                                   &kMulScalar,
                                   &kRsubScalar,
                                   &kRdivScalar,
                                   &kNeg,
                                   &kExp,
                                   &kLog,
                                   &kSqrt,
                                   &kRsqrt,
                                   &kDivGrad,
                                   &kRdivScalarGrad,
                                   &kEqual,
                                   &kNotEqual,
                                   &kLess,
                                   &kLessEqual,
                                   &kWhere,
                                   &kTanh,
                                   &kErf,
                                   &kSigmoid,
                                   &kRelu,
                                   &kReluGrad,
                                   &kGeluTanh,
                                   &kGeluTanhGrad,
                                   &kGeluErf,
                                   &kGeluErfGrad,
                                   &kCast,
                                   &kCopy,
                                   &kFill,
                                   &kMaximum,
                                   &kMinimum,
                                   &kAbs,
                                   &kSign,
                                   &kSin,
                                   &kCos,
                                   &kLog1p,
                                   &kExpm1,
                                   &kPowScalar,
                                   &kPowScalarGrad,
                                   &kSilu,
                                   &kSiluGrad,
                                   &kSoftplus,
                                   &kLeakyRelu,
                                   &kLeakyReluGrad,
                                   &kClamp,
                                   &kClampGrad,
                                   &kTanhGrad,
                                   &kRsqrtGrad,
                                   &kSoftplusGrad,
                                   &kIsFinite,
                                   &kIsInf,
                                   &kIsNan,
                                   &kView,
                                   &kPermute,
                                   &kExpand,
                                   &kSlice,
                                   &kSliceGrad,
                                   &kSelect,
                                   &kSplit,
                                   &kCat,
                                   &kTril,
                                   &kTriu,
                                   &kSum,
                                   &kMax,
                                   &kMin,
                                   &kAnyTrue,
                                   &kAllTrue,
                                   &kVar,
                                   &kStd,
                                   &kMatmul,
                                   &kLinear,
                                   &kLayerNorm,
                                   &kLayerNormGrad,
                                   &kRMSNorm,
                                   &kRMSNormGrad,
                                   &kSoftmax,
                                   &kSoftmaxGrad,
                                   &kLogSoftmax,
                                   &kLogSoftmaxGrad,
                                   &kAttention,
                                   &kAttentionGrad,
                                   &kEmbedding,
                                   &kEmbeddingGrad,
                                   &kEmbeddingGradOnto,
                                   &kIndexSelect,
                                   &kCrossEntropy,
                                   &kCrossEntropyGrad,
                                   &kLinearCrossEntropy,
                                   &kLinearCrossEntropyGrad,
                                   &kScale,
                                   &kMSELoss,
                                   &kL1Loss,
                                   &kHuberLoss,
                                   &kBCEWithLogits,
                                   &kGather,
                                   &kScatter,
                                   &kScatterSum,
                                   &kCumsum,
                                   &kArgmax,
                                   &kArgsort,
                                   &kTopk,
                                   &kRotary,
                                   &kDropout};

}  // namespace

std::span<const OpDef* const> all_ops() { return kTable; }

int op_id(const OpDef& op) {
  // Tens of entries; recordings cache nothing and still spend under 10 ns here.
  for (size_t i = 0; i < std::size(kTable); ++i)
    if (kTable[i] == &op) return static_cast<int>(i);
  throw_internal("an op is missing from ops/table.cc");
}

const OpDef* find_op(std::string_view name) {
  for (const OpDef* op : kTable)
    if (name == op->name) return op;
  return nullptr;
}

}  // namespace rondo
