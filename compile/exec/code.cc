#include "rondo/compile/exec/code.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/library_call.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/library_error.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {

Code::Code(const Plan& plan, std::vector<CompiledKernel> kernels, Device device)
    : Code(plan, std::move(kernels), device, target_of(device)) {}
Code::Code(const Plan& plan, std::vector<CompiledKernel> kernels, Device device, const Target& target)
    : device_(device), target_(&target), kernels_(std::move(kernels)) {
  if (plan.target != target.name())
    throw Error(absl::StrCat("compile: a plan for \"", plan.target, "\" cannot run on ", to_string(device),
                             ", whose target is \"", target.name(), "\"; make the plan for that target"));
  prepared_.resize(plan.launches.size());
  for (size_t i = 0; i < plan.launches.size(); ++i)
    if (plan.launches[i].kind == Launch::Kind::kLibraryCall)
      prepared_[i] = prepare(plan, plan.launches[i], plan.launches[i].variant);
}

std::shared_ptr<const PreparedKernel> Code::prepare(const Plan& plan, const Launch& launch, int variant) const {
  const GraphNode& node = plan.graph.node(launch.op());
  // A prepared call has no floats: they are arguments of a run.
  const PrepareFn make = entry_of(*node.op, device_).prepare;
  if (make == nullptr || node.attrs.floats.size() > 0) return nullptr;
  NoGrad off;
  RecorderScope eager(nullptr);
  // Stand-ins for the slots of a run. Preparing a call uses only one fact about memory: which values share it.
  std::vector<std::pair<int32_t, Storage>> memory;
  const LibraryCall call(plan, launch, [&](const Value& like, const Address& address) {
    auto found = std::find_if(memory.begin(), memory.end(), [&](const auto& m) { return m.first == address.slot; });
    if (found == memory.end()) found = memory.insert(found, {address.slot, Storage::allocate(1, device_)});
    return Tensor::over(found->second, address.offset / static_cast<int64_t>(size_of(like.dtype)), like.sizes,
                        like.strides, like.dtype);
  });
  std::shared_ptr<const PreparedKernel> prepared;
  call.with_context(node.attrs, [&](const KernelContext& context) {
    prepared = naming_op(context.op.name, context.where, [&] { return make(context, variant); });
  });
  return prepared;
}

Storage Code::lease_arena(const Plan& plan) const {
  if (plan.keeps_arena) {
    std::lock_guard lock(arenas_->mutex);
    if (!arenas_->spare.empty()) {
      Storage arena = std::move(arenas_->spare.back());
      arenas_->spare.pop_back();
      return arena;
    }
  }
  return Storage::allocate(static_cast<size_t>(plan.arena_bytes), device_);
}

void Code::return_arena(Storage arena) const {
  std::lock_guard lock(arenas_->mutex);
  try {
    arenas_->spare.push_back(std::move(arena));
  } catch (const std::bad_alloc&) {  // the arena is freed instead: the run itself has succeeded
  }
}

}  // namespace rondo::compile
