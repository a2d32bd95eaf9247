#include "rondo/runtime/dispatch/queued_kernel.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/location.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {
namespace {

// A copy of a call's arguments. Its tensors only borrow the operands' memory: if they counted as holders, they would
// change the results of is_only_holder() (gradient_memory.h). They are CPU tensors, because the kernel is CPU code: ops
// that the kernel calls run at once, and the kernel allocates host memory (backend.h, Note [Work]).
class QueuedKernel {
 public:
  explicit QueuedKernel(const KernelContext& context)
      : op_(context.op), attrs_(context.attrs), where_(context.where), site_(context.where) {
    for (const Tensor* input : context.inputs) inputs_.push_back(borrowed(*input));
    for (const Tensor& output : context.outputs) outputs_.push_back(borrowed(output));
    for (const EpilogueCall& call : context.epilogues) {
      epilogues_.push_back(call.kind);
      operands_.push_back(call.operand == nullptr ? Tensor() : borrowed(*call.operand));
    }
  }
  void run(KernelFn kernel) {
    const NoGrad off;
    const RecorderScope eager(nullptr);
    const amp::Autocast as_called(std::nullopt);
    const DeviceScope here(kCPU);
    const CallSiteScope errors(site_);
    absl::InlinedVector<const Tensor*, kUsualInputs> inputs;
    for (const Tensor& input : inputs_) inputs.push_back(&input);
    absl::InlinedVector<EpilogueCall, kMaxEpilogues> epilogues;
    for (size_t i = 0; i < epilogues_.size(); ++i)
      epilogues.push_back({epilogues_[i], operands_[i].defined() ? &operands_[i] : nullptr});
    kernel({op_, {inputs.data(), inputs.size()}, outputs_, attrs_, where_, {epilogues.data(), epilogues.size()}});
  }

 private:
  Tensor borrowed(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    const Storage& memory = tensor.impl()->storage;
    auto found = std::find_if(memories_.begin(), memories_.end(),
                              [&](const auto& entry) { return entry.first == memory.id(); });
    if (found == memories_.end()) {
      static const auto& nobody = *new auto(std::make_shared<const int>(0));
      found = memories_.insert(found, {memory.id(), Storage::borrow(memory.data(), memory.bytes(), nobody, kCPU)});
    }
    return Tensor::over(found->second, tensor.storage_offset(), tensor.sizes(), tensor.strides(), tensor.dtype());
  }

  const OpDef& op_;
  Attrs attrs_;
  std::source_location where_;
  CallSite site_;
  std::vector<std::pair<const void*, Storage>> memories_;  // tensors that share memory share a Storage, too
  std::vector<Tensor> inputs_, outputs_, operands_;
  std::vector<Epilogue> epilogues_;  // as many as operands_
};

}  // namespace

void queue_kernel(Device device, KernelFn kernel, const KernelContext& context) {
  enqueue(device, [kernel, call = std::make_unique<QueuedKernel>(context)] { call->run(kernel); });
}

}  // namespace rondo
