#include "rondo/modules/layers/segmentation_loss.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/pixel_loss.h"

namespace rondo::nn {

Tensor segmentation_loss(TensorArg logits, const Tensor& targets, int64_t ignore_index) {
  const std::source_location where = logits.where;
  if (!targets.defined()) throw_op_error("segmentation_loss", "targets are undefined", where);
  const Dims &x = logits.tensor.sizes(), &t = targets.sizes();
  const auto fail = [&](std::string_view what) {
    throw_op_error("segmentation_loss",
                   absl::StrCat(std::string(what), ", got ", std::string(name_of(targets.dtype())), to_string(t),
                                " for logits ", to_string(x)),
                   where);
  };
  if (x.rank() != 4) fail("logits must be (B, num_classes, h, w)");
  if (t.rank() != 3 || t[0] != x[0]) fail("targets must be (B, H, W)");
  if (targets.dtype() != kI64 && targets.dtype() != kI32) fail("targets must be i64 or i32");
  const int64_t n = x[1], H = t[1], W = t[2];
  if (n == 1) {
    const bool has_size = x[2] == H && x[3] == W;
    const Tensor full =  // (B, 1, H, W)
        has_size ? logits.tensor : ops::interpolate(logits, {H, W}, {.mode = ops::InterpolateMode::kBilinear});
    const Tensor valid = ops::where(ops::not_equal(targets, ignore_index), ops::greater_equal(targets, 0).to(kF32), 0.0)
                             .to(full.dtype());
    return ops::mean(
        ops::bce_with_logits(full.select(1, 0), targets.to(full.dtype()), {.reduction = ops::Reduction::kNone}) *
        valid);
  }
  return ops::pixel_cross_entropy({logits.tensor, where}, {targets, where}, ignore_index);
}

}  // namespace rondo::nn
