#include "rondo/dist/groups/scalar_reduction.h"

#include <utility>

namespace rondo::dist {

ScalarReduction::ScalarReduction(ProcessGroup& group, ReduceOp op, std::vector<Term> terms, std::string_view name)
    : group_(group), op_(op), terms_(std::move(terms)), name_(name) {
  if (!group.device()) begin();  // does not depend on the terms: all ranks need the same order of collectives
}

void ScalarReduction::begin() {
  double sum = 0;
  for (const Term& term : terms_) sum += term.weight * term.value.item();
  reduced_ = Tensor::scalar<double>(sum);
  work_ = group_.all_reduce(reduced_, op_, name_);
  terms_.clear();
}

double ScalarReduction::value() {
  if (!reduced_.defined()) begin();
  work_.wait();
  return reduced_.item();
}

}  // namespace rondo::dist
