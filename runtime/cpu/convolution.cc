// Kernels of conv2d and its gradients. f32 and bf16 run in oneDNN if it supports the convolution. If it does not, f32
// runs as products of patches (convolution_patches.h), and bf16 through f32 copies. f16 always runs through f32 copies,
// and f64 always as products of patches.
#include "rondo/runtime/ops/convolution.h"

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/convolution_call.h"
#include "rondo/runtime/cpu/convolution_library.h"
#include "rondo/runtime/cpu/convolution_patches.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::cpu {

namespace {

using Computes = ConvolutionCall::Computes;

// The tensors of a call; result() is the one that is written.
struct Tensors {
  Computes computes;
  Tensor input, weight, bias, output;
  Tensor& result() { return computes == Computes::kOutput ? output : computes == Computes::kInput ? input : weight; }
  ConvolutionOperands operands() const {
    return {.input = input.impl()->data(),
            .weight = weight.impl()->data(),
            .bias = bias.defined() ? bias.impl()->data() : nullptr,
            .output = output.impl()->data()};
  }
  // Replaces each tensor t that the call reads by fn(t).
  template <class F> void each_operand(F fn) {
    for (Tensor* t : {&input, &weight, &bias, &output})
      if (t->defined() && t != &result()) *t = fn(*t);
  }
};

// True if the tensor is channels last and dense. A gradient that is part of a larger tensor may have gaps.
bool is_last(const Tensor& t) {
  return t.rank() == 4 && is_channels_last(t.sizes(), t.strides()) && t.permute({0, 2, 3, 1}).is_contiguous();
}

ConvolutionCall call_of(const Tensors& t, const ops::Convolution& conv) {
  ConvolutionCall call{.computes = t.computes,
                       .dtype = t.input.dtype(),
                       .bias = t.bias.defined(),
                       .input_last = is_last(t.input),
                       .weight_last = is_last(t.weight),
                       .output_last = is_last(t.output),
                       .batch = t.input.size(0),
                       .channels = t.input.size(1),
                       .outputs = t.output.size(1),
                       .groups = conv.groups,
                       .stride = conv.stride,
                       .dilation = conv.dilation,
                       .padding_before = conv.before};
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<size_t>(d);
    call.input[i] = t.input.size(2 + d);
    call.kernel[i] = t.weight.size(2 + d);
    call.output[i] = t.output.size(2 + d);
  }
  return call;
}

// Computes the result if a tensor is empty: there are no products to sum, so the result is 0 (plus bias).
void fill_empty(Tensors& t) {
  t.result().fill_(0);
  if (t.computes == Computes::kOutput && t.bias.defined()) t.output.add_(t.bias.view({t.bias.size(0), 1, 1}));
}

void run_in_patches(Tensors t, const ops::Convolution& conv) {
  Tensor result = t.result();
  const auto last = [](const Tensor& x) { return x.rank() == 4 ? x.permute({0, 2, 3, 1}) : x; };
  // `last` and `usual` convert between views (B, H, W, C) and (B, C, H, W) of the same memory.
  const auto usual = [](const Tensor& x) { return x.permute({0, 3, 1, 2}); };
  t.each_operand([&](const Tensor& x) { return x.rank() == 4 ? usual(last(x).contiguous()) : x.contiguous(); });
  const bool in_place = last(result).is_contiguous();
  if (!in_place) t.result() = usual(Tensor::empty(last(result).sizes(), {result.dtype(), kCPU}));
  convolve_patches(call_of(t, conv), t.operands());
  if (!in_place) result.copy_(t.result());
}

void convolve(Tensors t, const ops::Convolution& conv) {
  const DType dtype = t.input.dtype();
  if (dtype == kF64) return run_in_patches(t, conv);
  if (dtype != kF16) {
    Tensors as_read = t;
    as_read.each_operand([](const Tensor& x) { return is_last(x) || x.is_contiguous() ? x : x.contiguous(); });
    if (const auto library = LibraryConvolution::get(call_of(as_read, conv))) return library->run(as_read.operands());
    if (dtype == kF32) return run_in_patches(t, conv);
  }
  Tensor result = t.result();
  t.each_operand([](const Tensor& x) { return x.to(kF32); });
  t.result() = Tensor::empty(result.sizes(), {kF32, kCPU});
  convolve(t, conv);
  result.copy_(t.result());
}

void run(const KernelContext& context, Tensors t) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  if (t.result().numel() == 0) return;
  for (const Tensor* x : {&t.input, &t.weight, &t.output})
    if (x->numel() == 0) return fill_empty(t);
  convolve(std::move(t), ops::Convolution::of(context.attrs));
}

}  // namespace

void conv2d_kernel(const KernelContext& c) {
  run(c, {Computes::kOutput, c.in(0), c.in(1), c.has(2) ? c.in(2) : Tensor(), c.out()});
}
void conv2d_grad_input_kernel(const KernelContext& c) { run(c, {Computes::kInput, c.out(), c.in(1), {}, c.in(0)}); }
void conv2d_grad_weight_kernel(const KernelContext& c) { run(c, {Computes::kWeight, c.in(1), c.out(), {}, c.in(0)}); }

}  // namespace rondo::cpu
