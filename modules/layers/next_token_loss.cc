#include "rondo/modules/layers/next_token_loss.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::nn {

Tensor NextTokenLoss::operator()(const Tensor& idx, const Tensor& targets, std::source_location where) const {
  const int64_t n = idx.numel(where);
  // In two cases all logits are made at once, however many there are. A hook on the whole model runs only if the
  // model's forward is called, and forward makes all logits. If the output layer was replaced by one of another class,
  // `weight` is undefined.
  const bool whole = !model.is_plain() || !weight.defined() || n * weight.size(0) <= whole_logits;
  const Tensor x = whole ? logits() : [&] {
    const ModuleFrame frame(&model.path(), where);
    return features();
  }();
  if (!(targets.sizes(where) == idx.sizes()))
    throw_op_error(
        model.type_name() + "::loss",
        absl::StrCat("targets must have idx's shape ", to_string(idx.sizes()), ", got ", to_string(targets.sizes())),
        where);
  const Tensor flat = targets.reshape({n});
  if (whole) return ops::cross_entropy({x.view({n, x.size(-1)}), where}, {flat, where});
  return ops::linear_cross_entropy({x.reshape({n, weight.size(1)}), where}, weight, bias, {flat, where});
}

void check_positions(const char* model, const Tensor& idx, const Tensor& positions) {
  if (is_index(positions.dtype()) && positions.sizes() == idx.sizes()) return;
  throw_op_error(model,
                 absl::StrCat("positions must be i64 or i32 with the shape of idx, ", to_string(idx.sizes()), ", got ",
                              std::string(name_of(positions.dtype())), to_string(positions.sizes())),
                 std::source_location::current());
}

}  // namespace rondo::nn
