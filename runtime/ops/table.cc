// All ops. No key and no file holds an op's position, so a new op may stand anywhere in its family's list.
#include "rondo/runtime/ops/table.h"

#include <vector>

namespace rondo {
namespace {

using namespace ops;

constexpr const OpList* kFamilies[] = {
    &kElementwiseOps, &kComparisonOps, &kBitwiseOps,       &kCastOps,       &kMathOps,          &kActivationOps,
    &kViewOps,        &kTriangleOps,   &kReductionOps,     &kPredicateOps,  &kStatisticsOps,    &kMatmulOps,
    &kNormOps,        &kAttentionOps,  &kEmbeddingOps,     &kLossOps,       &kPointwiseLossOps, &kIndexingOps,
    &kSegmentOps,     &kRotaryOps,     &kDropoutOps,       &kRandomOps,     &kWindowOps,        &kFactoryOps,
    &kConvolutionOps, &kPoolingOps,    &kInterpolationOps, &kCollectiveOps, &kChannelNormOps,   &kPixelLossOps};

}  // namespace

std::span<const OpDef* const> all_ops() {
  // Never destroyed: programs may call ops while they exit.
  static const std::vector<const OpDef*>& all = *[] {
    auto* list = new std::vector<const OpDef*>;
    for (const OpList* family : kFamilies) list->insert(list->end(), family->begin(), family->end());
    return list;
  }();
  return all;
}

const OpDef* find_op(std::string_view name) {
  for (const OpDef* op : all_ops())
    if (name == op->name) return op;
  return nullptr;
}

}  // namespace rondo
