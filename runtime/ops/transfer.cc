// Tensor::to(Device): a copy between devices, and its gradient.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/op_node.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::ops {
namespace {

int64_t as_integer(Device device) {
  return static_cast<int64_t>(device.backend) << 8 | static_cast<uint8_t>(device.index);
}
Device as_device(int64_t value) { return {static_cast<Backend>(value >> 8), static_cast<int8_t>(value & 0xFF)}; }

// ints: {to, from}. It has no kernel and is never recorded, because a recording lives on one device.
constexpr OpDef kToDevice = {
    .name = "to_device",
    .kind = OpKind::kOpaque,
    .grad = [](const GradContext& g) { g.set(0, to_device(g.grad_out(), as_device(g.integer(1)))); },
};

}  // namespace

Tensor to_device(TensorArg x, Device device) {
  require_defined("to", x);
  const Device from = x.tensor.device();
  if (device == from) return x.tensor;
  const RecordingPause pause("a tensor moves to another device", x.where);
  const memory::Cause cause("", "to", x.where);
  Tensor result;
  {
    const NoGrad off;
    const Tensor dense = x.tensor.contiguous(x.where);
    result = Tensor::empty(dense.sizes(), {dense.dtype(), device});
    copy_bytes(device, result.mutable_address(), from, dense.address(x.where), static_cast<size_t>(dense.nbytes()));
  }
  if (grad_enabled() && x.tensor.requires_grad()) {
    const Tensor* inputs[] = {&x.tensor};
    result.impl()->requires_grad = true;
    autograd::record_call(kToDevice, inputs, {.ints = {as_integer(device), as_integer(from)}}, {&result, 1}, x.where);
  }
  return result;
}

}  // namespace rondo::ops
