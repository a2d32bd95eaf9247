#include "rondo/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/optim/formula_code.h"
#include "rondo/optim/launch_queue.h"
#include "rondo/optim/norm.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::optim {
namespace {

// Computes the factor of clipping. In: the square of the norm. Number: max_norm. Out: the norm, the factor, and 1 if
// the gradients are to be scaled, else 0.
struct Clip {
  static constexpr size_t kIn = 1, kNumbers = 1, kOut = 3;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    const T norm = scalar::sqrt(in[0]), zero = scalar::constant(norm, 0.0), one = scalar::constant(norm, 1.0);
    const T factor = numbers[0] / (norm + scalar::constant(norm, 1e-6));
    return {norm, factor, scalar::select(scalar::le(one, factor), zero, one)};  // 1 for a NaN factor
  }
};

// Computes values[0] *= scalars[0].
template <class C> void scale(const void* /*context*/, C* const* values, const C* scalars, int64_t n) {
  C* __restrict value = values[0];
  const C factor = scalars[0];
  for (int64_t i = 0; i < n; ++i) value[i] = value[i] * factor;
}
void build_scale(const void* /*context*/, LoopValue* values, const LoopValue* scalars) {
  values[0] = values[0] * scalars[0];
}
std::shared_ptr<Foreach> scale_pass(Device device, DType dtype) {
  const Body body{.name = "clip",
                  .n_values = 1,
                  .n_scalars = 1,
                  .f32 = &scale<float>,
                  .f64 = &scale<double>,
                  .build = &build_scale};
  return shared_pass(device, body, {{.dtype = dtype}});
}

}  // namespace

Tensor clip_grad_norm_(std::span<const Tensor> params, double max_norm, ClipOptions options) try {
  const FloatingPointScope floating_point;
  max_norm = floating_point.here(max_norm);
  if (!(max_norm >= 0)) throw Error(absl::StrCat("clip_grad_norm_: max_norm must not be negative, got ", max_norm));
  const NoGrad off;
  const memory::Cause cause("", "clip_grad_norm_", {});
  std::vector<Tensor> grads;
  std::vector<NormOperand> operands;
  HashSet<const void*> seen;
  for (Tensor param : params) {
    if (const char* who = autograd::gradient_claim(param, GradientClaim::kOptimizer); who != nullptr)
      throw Error(absl::StrCat("clip_grad_norm_: ", who,
                               " uses these gradients up while backward runs, before their norm is "
                               "known; clip with Optimizer::step() after backward instead"));
    if (!param.defined() || !param.grad().defined()) continue;
    if (!param.grad().is_contiguous()) param.set_grad(param.grad().contiguous());
    // Two parameters may have been given one gradient, which would be scaled twice. So the second one gets a copy.
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
  // The four numbers: the square of the norm, the factor, whether to scale, and max_norm.
  const Storage kept = numbers_on(device, {0, 1, 0, max_norm});
  auto* const values = reinterpret_cast<double*>(kept.data());
  enqueue_sum_of_squares(device, operands, values);
  call_program(device, program_body<Clip>("clip_factor"), {values, norm, values + 1, values + 2}, values + 3);
  if (options.error_if_nonfinite && !std::isfinite(result.item()))
    throw Error(
        absl::StrCat("clip_grad_norm_: the gradients' norm is ", result.item(), "; a loss or a gradient overflowed"));
  LaunchQueue queue;
  queue.start(device);
  for (DType dtype : {kF32, kBF16, kF16, kF64}) {
    const std::shared_ptr<Foreach> pass = scale_pass(device, dtype);
    ForeachTable& table = queue.table();
    for (const NormOperand& o : operands)
      if (o.dtype == dtype && o.n > 0)
        table.add(pass->item(o.n, 0, values + 1), pass->n_operands())[0] = const_cast<void*>(o.data);
    if (!table.items.empty()) queue.add(pass, compile::Condition{values + 2, 1});
  }
  queue.make_ready();
  for (Tensor& grad : grads) static_cast<void>(grad.mutable_address());  // tells the tape that it is written
  queue.submit();
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("clip_grad_norm_");
}

}  // namespace rondo::optim
