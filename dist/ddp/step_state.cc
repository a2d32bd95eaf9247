#include "rondo/dist/ddp/step_state.h"

#include <utility>

#include "rondo/runtime/device/backend.h"

namespace rondo::dist {

void StepGradient::start_over() {
  arrived = complete = sent = delivered = only_holder = false;
  held = assembled = Tensor();
}

StepState::StepState(const nn::ModuleBase& model, ProcessGroup& group, const BucketOptions& options)
    : group(group),
      options(options),
      device(group.device() && !has_host_memory(*group.device()) ? *group.device() : kCPU),
      async_device(!has_host_memory(device)) {
  for (nn::NamedTensor& p : model.named_parameters()) {
    if (!p.tensor.requires_grad()) continue;
    positions[p.tensor.impl()] = gradients.size();
    StepGradient& gradient = gradients.emplace_back();
    gradient.name = std::move(p.name);
    gradient.parameter = std::move(p.tensor);
  }
}

void StepState::start_over() {
  ++number;
  order.clear();
  trouble.clear();
  unused.clear();
  for (StepGradient& gradient : gradients) gradient.start_over();
}

void StepState::note(std::string what) {
  if (trouble.empty()) trouble = std::move(what);
}

}  // namespace rondo::dist
