#include "rondo/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "rondo/optim/foreach.h"
#include "rondo/optim/norm.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/backend.h"

namespace rondo::optim {
namespace {

void scale_by(double factor, std::span<const NormOperand> operands) {
  std::vector<int64_t> sizes;
  for (const NormOperand& operand : operands) sizes.push_back(operand.n);
  parallel_for_each(sizes, [&](size_t i, int64_t begin, int64_t end) {
    visit_floating(operands[i].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
      T* values = static_cast<T*>(const_cast<void*>(operands[i].data));
      const C scale = static_cast<C>(factor);
      for (int64_t k = begin; k < end; ++k) values[k] = static_cast<T>(static_cast<C>(values[k]) * scale);
    });
  });
}

}  // namespace

Tensor clip_grad_norm_(std::span<const Tensor> params, double max_norm, ClipOptions options) {
  if (!(max_norm >= 0)) throw Error(absl::StrCat("clip_grad_norm_: max_norm must not be negative, got ", max_norm));
  const NoGrad off;
  std::vector<Tensor> grads;
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
    else if (!seen.insert(param.grad().address()).second && param.numel() > 0) param.set_grad(param.grad().clone());
    const Tensor& grad = grads.emplace_back(param.grad());
    if (!is_floating(grad.dtype())) throw Error("clip_grad_norm_: gradients must be floating point");
    if (const Device all = grads.front().device(); !(grad.device() == all))
      throw Error(absl::StrCat("clip_grad_norm_: gradients are on ", to_string(all), " and on ",
                               to_string(grad.device()), "; they have one norm if they are on one device"));
    operands.push_back({grad.address(), grad.dtype(), grad.numel()});
  }
  const auto any = std::find_if(params.begin(), params.end(), [](const Tensor& param) { return param.defined(); });
  const Device device = !grads.empty() ? grads[0].device() : any != params.end() ? any->device() : default_device();
  Tensor result = Tensor::empty({}, {kF64, device});
  auto* norm = reinterpret_cast<double*>(result.mutable_address());
  enqueue_norm(device, operands, norm);
  if (options.error_if_nonfinite && !std::isfinite(result.item()))
    throw Error(
        absl::StrCat("clip_grad_norm_: the gradients' norm is ", result.item(), "; a loss or a gradient overflowed"));
  for (Tensor& grad : grads) static_cast<void>(grad.mutable_address());  // written from here on
  enqueue(device, [device, norm, max_norm, operands = std::move(operands)] {
    const double factor = max_norm / (*norm + 1e-6);
    if (!(factor >= 1) && !backend_of(device).failed(device.index)) scale_by(factor, operands);
  });
  return result;
}

}  // namespace rondo::optim
