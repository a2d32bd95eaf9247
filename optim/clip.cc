#include "rondo/optim/clip.h"

#include <cmath>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "rondo/optim/foreach.h"
#include "rondo/optim/norm.h"
#include "rondo/runtime/autograd.h"

namespace rondo::optim {

double clip_grad_norm_(std::span<const Tensor> params, double max_norm, ClipOptions options) {
  if (!(max_norm >= 0)) throw Error(absl::StrCat("clip_grad_norm_: max_norm must not be negative, got ", max_norm));
  const NoGrad off;
  std::vector<Tensor> grads;
  std::vector<int64_t> sizes;
  std::vector<NormOperand> operands;
  absl::flat_hash_set<const void*> seen;
  for (Tensor param : params) {
    if (const char* who = autograd::gradient_claim(param, GradientClaim::kUsesUp); who != nullptr)
      throw Error(absl::StrCat("clip_grad_norm_: ", who,
                               " uses these gradients up while backward runs, before their norm is "
                               "known; clip with Optimizer::step() after backward instead"));
    if (!param.defined() || !param.grad().defined()) continue;
    if (!param.grad().is_contiguous()) param.set_grad(param.grad().contiguous());
    // Two parameters may have been given one gradient, which would be scaled twice.
    else if (!seen.insert(param.grad().raw_data()).second && param.numel() > 0) param.set_grad(param.grad().clone());
    const Tensor& grad = grads.emplace_back(param.grad());
    if (!is_floating(grad.dtype())) throw Error("clip_grad_norm_: gradients must be floating point");
    sizes.push_back(grad.numel());
    operands.push_back({grad.raw_data(), grad.dtype(), grad.numel()});
  }
  const double norm = norm_of(operands);
  if (options.error_if_nonfinite && !std::isfinite(norm))
    throw Error(absl::StrCat("clip_grad_norm_: the gradients' norm is ", norm, "; a loss or a gradient overflowed"));
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  std::vector<std::byte*> data;
  for (Tensor& grad : grads) data.push_back(static_cast<std::byte*>(grad.raw_mutable_data()));
  parallel_for_each(sizes, [&](size_t i, int64_t begin, int64_t end) {
    visit_floating(grads[i].dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
      T* values = reinterpret_cast<T*>(data[i]);
      const C scale = static_cast<C>(factor);
      for (int64_t k = begin; k < end; ++k) values[k] = static_cast<T>(static_cast<C>(values[k]) * scale);
    });
  });
  return norm;
}

}  // namespace rondo::optim
