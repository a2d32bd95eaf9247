#include "rondo/modules/layers/classification_loss.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::nn {

std::string_view name_of(ProblemType problem) {
  switch (problem) {
    case ProblemType::kRegression: return "regression";
    case ProblemType::kSingleLabel: return "single_label_classification";
    default: return "multi_label_classification";
  }
}

ProblemType problem_of(std::optional<ProblemType> problem, int64_t num_classes, DType targets) {
  if (problem) return *problem;
  if (num_classes == 1) return ProblemType::kRegression;
  return targets == kI64 || targets == kI32 ? ProblemType::kSingleLabel : ProblemType::kMultiLabel;
}

Tensor classification_loss(TensorArg logits, const Tensor& targets, std::optional<ProblemType> problem) {
  const Tensor& x = logits.tensor;
  const auto fail = [&](std::string_view what) {
    throw_op_error("classification_loss",
                   absl::StrCat(std::string(what), ", got ", std::string(name_of(targets.dtype())),
                                to_string(targets.sizes()), " for logits ", to_string(x.sizes())),
                   logits.where);
  };
  if (!targets.defined()) throw_op_error("classification_loss", "targets are undefined", logits.where);
  if (x.rank() != 2) fail("logits must be (B, num_classes)");
  const int64_t B = x.size(0), n = x.size(1);
  const ProblemType kind = problem_of(problem, n, targets.dtype());
  if (kind == ProblemType::kSingleLabel) {
    if (n == 1) fail("one class has no cross-entropy; use ProblemType::kRegression or two classes");
    if (targets.dtype() != kI64 && targets.dtype() != kI32)
      fail("targets of single_label_classification must be i64 (B)");
    if (targets.numel() != B) fail("targets of single_label_classification must be i64 (B)");
    return ops::cross_entropy({x, logits.where}, {targets.to(kI64).reshape({B}), logits.where});
  }
  const bool flat = n == 1 && targets.sizes() == Dims{B};
  if (kind == ProblemType::kRegression) {
    if (!flat && !(targets.sizes() == x.sizes()))
      fail(n == 1 ? "targets of a regression must be (B) or (B, 1)"
                  : "targets of a regression must be (B, num_classes)");
    return ops::mse_loss({x, logits.where}, {targets.to(x.dtype()).reshape(x.sizes()), logits.where});
  }
  if (!(targets.sizes() == x.sizes()) || (!is_floating(targets.dtype()) && targets.dtype() != kBool))
    fail("targets of multi_label_classification must be floats (B, num_classes) in [0, 1]");
  return ops::bce_with_logits({x, logits.where}, {targets.to(x.dtype()), logits.where});
}

}  // namespace rondo::nn
