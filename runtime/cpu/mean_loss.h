// Shared by the kernels of cross-entropy: the options, and the reduction of the rows' losses to the loss of a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"

namespace rondo::cpu {

// Attributes of cross_entropy: ints {ignore_index, reduction}, floats {label_smoothing}.
struct LossOptions {
  int64_t ignore_index;
  int64_t reduction;  // ops::Reduction: 0 mean, 1 sum, 2 none
  double smoothing;
  explicit LossOptions(const Attrs& attrs)
      : ignore_index(attrs.ints[0]), reduction(attrs.ints[1]), smoothing(attrs.floats[0]) {}
};

inline int64_t count_targets(const Tensor& target, int64_t ignore_index) {
  int64_t n = 0;
  for (int64_t i = 0; i < target.numel(); ++i) n += pointer<int64_t>(target)[i] != ignore_index;
  return n;
}

// Reduces the losses of the rows to `out`, rounded to its dtype.
template <class C>
void reduce_losses(const LossOptions& options, const Tensor& target, const std::vector<C>& losses, Tensor& out) {
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = pointer<T>(out);
    const auto rows = static_cast<int64_t>(losses.size());
    if (options.reduction == 2) {
      for (int64_t r = 0; r < rows; ++r) to[r] = static_cast<T>(losses[r]);
      return;
    }
    C total = sum_row<C>(rows, [&](int64_t i) { return losses[i]; });
    if (options.reduction == 0) total = total / static_cast<C>(count_targets(target, options.ignore_index));
    *to = static_cast<T>(total);
  });
}

template <class C> C mean_scale(const LossOptions& options, const Tensor& target) {
  return options.reduction == 0 ? C(1) / static_cast<C>(count_targets(target, options.ignore_index)) : C(1);
}

}  // namespace rondo::cpu
