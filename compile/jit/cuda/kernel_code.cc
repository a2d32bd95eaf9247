#include "rondo/compile/jit/cuda/kernel_code.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/target/code_generator.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/status.h"

namespace rondo::compile::cuda {
namespace {

constexpr size_t kMostRuns = 64;  // the number of sizes that are remembered

// Returns the key of code for a schedule that does not follow from the kernel's text.
std::string scheduled_text(const LoopKernel& kernel, const Schedule& schedule) {
  const std::string packed = pack(describe(kernel, schedule));  // the facts, without code
  const size_t begin = packed.find(' '), end = packed.find('\n', begin);
  return absl::StrCat(code_text(kernel), "schedule", packed.substr(begin, end - begin), "\n");
}

bool equal_sizes(const std::vector<int64_t>& sizes, const LoopKernel& kernel, const int64_t* extents) {
  return sizes[0] == kernel.rows && std::equal(sizes.begin() + 1, sizes.end(), extents);
}

}  // namespace

KernelCode::KernelCode(CudaObject object, const Target& target, int capability)
    : MachineCode(this),
      object_(std::move(object)),
      target_(target),
      capability_(capability),
      module_([this](int device) -> const std::string& { return image_for(device); },
              object_.sums.empty() ? std::vector<std::string>{object_.name}
                                   : std::vector<std::string>{object_.name, kCombineName}) {}

const std::string& KernelCode::image_for(int device) const {
  return object_.image.for_device(rondo::cuda::device_state(device).capability(), capability_);
}

KernelCode::Run KernelCode::at(const LoopKernel& kernel, const int64_t* extents) const {
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (!equal_sizes(runs_[i]->sizes, kernel, extents)) continue;
      if (i > 0) std::swap(runs_[i], runs_[0]);
      return runs_[0]->run;
    }
  }
  std::vector<int64_t> sizes{kernel.rows};
  // The key of a run: its rows, and the sizes that the code reads, if any.
  sizes.insert(sizes.end(), extents, extents + object_.varying.size());
  const Run run = make_run(kernel);
  const std::lock_guard lock(mutex_);
  if (runs_.size() == kMostRuns) runs_.pop_back();
  runs_.insert(runs_.begin(), std::make_unique<const Known>(std::move(sizes), run));
  return run;
}

KernelCode::Run KernelCode::make_run(const LoopKernel& kernel) const {
  LoopKernel here = kernel;
  here.varying = object_.varying;
  const Schedule chosen = schedule(here);
  const std::vector<int64_t> integers = integer_arguments(here, chosen);
  return {&for_schedule(here, chosen), grid(here, chosen), {integers.begin(), integers.end()}};
}

const KernelCode& KernelCode::for_schedule(const LoopKernel& kernel, const Schedule& schedule) const {
  if (same_code(schedule, object_.schedule)) return *this;
  const std::lock_guard lock(mutex_);
  for (const auto& other : others_)
    if (const KernelCode& code = of(other->handle()); same_code(schedule, code.object_.schedule)) return code;
  LoopKernel here = kernel;
  here.varying = object_.varying;
  CodeStore& store = CodeStore::of(target_);
  const std::string text = scheduled_text(here, schedule);
  std::shared_ptr<const MachineCode> code = store.find(text).code;
  if (code == nullptr) code = store.add(text, pack(make_object(here, schedule, capability_)));
  others_.push_back(code);
  return of(code->handle());
}

std::string source_of(const LoopKernel& kernel, const Schedule& schedule) {
  const CudaObject object = describe(kernel, schedule);
  LoopKernel named = kernel;
  named.name = object.name;
  std::string text(device_math());
  if (std::any_of(kernel.operands.begin(), kernel.operands.end(), [](const Operand& o) { return o.is_check; }))
    absl::StrAppend(&text, rondo::cuda::kDeviceStatusLayout, rondo::cuda::kDeviceStatusFunctions);
  if (kernel.per_item) absl::StrAppend(&text, std::string(kTableLayout), "\n", emit_table(named, schedule));
  else absl::StrAppend(&text, emit(named, schedule));
  if (!object.sums.empty()) absl::StrAppend(&text, std::string(kSumsLayout), "\n", emit_combine(kCombineName));
  return text;
}

void require_nvrtc() {
  std::string why_not;
  if (rondo::cuda::find_nvrtc(&why_not) == nullptr)
    throw NoCodeGenerator(
        absl::StrCat("compile: no kernels for CUDA: ", why_not, "; they need CUDA's NVRTC (pip: nvidia-cuda-nvrtc)"));
}

CudaObject make_object(const LoopKernel& kernel, const Schedule& schedule, int capability) {
  require_nvrtc();
  CudaObject object = describe(kernel, schedule);
  object.image = rondo::cuda::compile_image(source_of(kernel, schedule), kernel.name, capability);
  return object;
}

}  // namespace rondo::compile::cuda
