// Kernels of conv2d and its gradients on CUDA: plans of cuDNN (dnn_plan.h), or the op's decomposition if there is no
// plan.
//
// Note [Kept convolutions]. The plans of the most recent 256 convolutions are kept, over all threads and devices, by
//   their parameters, because making a plan takes up to seconds. A convolution that no engine serves is kept, too, so
//   that cuDNN is asked once, and the convolution is counted once.
#include <memory>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/recent_cache.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/nvtx.h"
#include "rondo/runtime/dispatch/run_in_parts.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/matmul_precision.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::cuda {
namespace {

using Computes = DnnConvolution::Computes;

struct ConvolutionKey {
  uint64_t device;  // DeviceState::serial()
  DnnConvolution call;
  friend bool operator==(const ConvolutionKey& a, const ConvolutionKey& b) = default;
  template <class H> friend H AbslHashValue(H h, const ConvolutionKey& key) {
    const DnnConvolution& c = key.call;
    return H::combine(std::move(h), key.device, c.computes, c.dtype, c.bias, c.relu, c.fast, c.input_last,
                      c.weight_last, c.output_last, c.input, c.weight, c.output, c.stride, c.dilation, c.before,
                      c.after);
  }
};

std::shared_ptr<const DnnPlan> convolution_plan(int device, const DnnConvolution& call) {
  static auto* const cache = new RecentCache<ConvolutionKey, DnnPlan>(256);
  const ConvolutionKey key{device_state(device).serial(), call};
  if (std::shared_ptr<const DnnPlan> found = cache->find(key)) return found;
  return cache->add(key, DnnPlan::get(device, convolution_graph(call), call.describe()));
}

// The three tensors of a call, and the bias.
struct ConvolutionTensors {
  Computes computes;
  Tensor input, weight, bias, output;
  Tensor& result() { return computes == Computes::kOutput ? output : computes == Computes::kInput ? input : weight; }
};

// True if `t` is channels last and dense. (A gradient that is part of a larger tensor has gaps.)
bool is_last(const Tensor& t) {
  return t.rank() == 4 && is_channels_last(t.sizes(), t.strides()) && t.permute({0, 2, 3, 1}).is_contiguous();
}
// True if plans can read `t`: it is dense, in one of the two layouts, at an address that is a multiple of 16.
bool is_readable(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.impl()->data()) % 16 == 0 && (t.is_contiguous() || is_last(t));
}
Tensor dense_for_plan(const Tensor& t) {
  if (!t.defined() || is_readable(t)) return t;
  Tensor copy = Tensor::empty(t.sizes(), {t.dtype(), t.device()});
  copy.copy_(t);
  return copy;
}
std::array<int64_t, 4> sizes_of(const Tensor& t) { return {t.size(0), t.size(1), t.size(2), t.size(3)}; }

void convolve(const KernelContext& context, ConvolutionTensors t) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  Tensor result = t.result();
  if (result.numel() == 0) return;
  if (t.input.numel() == 0 || t.weight.numel() == 0 || t.output.numel() == 0) {  // every sum is empty
    result.fill_(0);
    if (t.computes == Computes::kOutput && t.bias.defined()) result.add_(t.bias.view({t.bias.size(0), 1, 1}));
    return;
  }
  if (result.dtype() == kF64) return run_in_parts(context);
  const ops::Convolution conv = ops::Convolution::of(context.attrs);
  for (Tensor* operand : {&t.input, &t.weight, &t.bias, &t.output})
    if (operand != &t.result()) *operand = dense_for_plan(*operand);
  const bool in_place = is_readable(result);
  if (!in_place) t.result() = Tensor::empty(result.sizes(), {result.dtype(), result.device()});
  const DnnConvolution call{.computes = t.computes,
                            .dtype = result.dtype(),
                            .bias = t.bias.defined(),
                            .fast = result.dtype() == kF32 && float32_matmul_precision() == MatmulPrecision::kHigh,
                            .input_last = is_last(t.input),
                            .weight_last = is_last(t.weight),
                            .output_last = is_last(t.output),
                            .input = sizes_of(t.input),
                            .weight = sizes_of(t.weight),
                            .output = sizes_of(t.output),
                            .stride = conv.stride,
                            .dilation = conv.dilation,
                            .before = conv.before,
                            .after = conv.after};
  const std::shared_ptr<const DnnPlan> plan = convolution_plan(result.device().index, call);
  if (!plan->usable()) {
    count_run_without_plan();
    return run_in_parts(context);
  }
  const Range range("convolution");
  absl::InlinedVector<const void*, 4> addresses;
  const auto add = [&](const Tensor& tensor) { addresses.push_back(tensor.impl()->data()); };
  switch (t.computes) {
    case Computes::kOutput: add(t.input), add(t.weight); break;
    case Computes::kInput: add(t.output), add(t.weight); break;
    case Computes::kWeight: add(t.output), add(t.input); break;
  }
  if (call.bias) add(t.bias);
  add(t.result());
  plan->enqueue({addresses.data(), addresses.size()});
  if (!in_place) result.copy_(t.result());
}

}  // namespace

void conv2d_kernel(const KernelContext& c) {
  convolve(c, {Computes::kOutput, c.in(0), c.in(1), c.has(2) ? c.in(2) : Tensor(), c.out()});
}
void conv2d_grad_input_kernel(const KernelContext& c) {
  convolve(c, {Computes::kInput, c.out(), c.in(1), {}, c.in(0)});
}
void conv2d_grad_weight_kernel(const KernelContext& c) {
  convolve(c, {Computes::kWeight, c.in(1), c.out(), {}, c.in(0)});
}

}  // namespace rondo::cuda
