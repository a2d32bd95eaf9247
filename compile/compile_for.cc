#include "rondo/compile/compile_for.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/artifacts.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/region/stashed_gradients.h"
#include "rondo/compile/region/stashed_hooks.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/random/random.h"

namespace rondo::compile {
namespace {

// Saves the parts of a model that a step changes. The destructor restores them.
class Unchanged {
 public:
  explicit Unchanged(nn::ModuleBase& model) : model_(on_cpu(model)), hooks_(model), gradients_(model) {}
  ~Unchanged() {
    model_.zero_grad();
    model_.to(kCPU);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  static nn::ModuleBase& on_cpu(nn::ModuleBase& model) {
    for (const Tensor* slot : model.tensor_slots())
      if (slot->defined() && slot->device() != kCPU)
        throw Error(absl::StrCat("compile_for: the model is on ", to_string(slot->device()),
                                 "; compile it on the CPU, before it is moved"));
    return model;
  }
  nn::ModuleBase& model_;
  const StashedHooks hooks_;
  const StashedGradients gradients_;  // restored after the model is on the CPU again
};

// Finds a target whose code can be made without its device. Throws Error if there is no such target of this name.
const Target& ahead_target(std::string_view name) {
  std::string why = absl::StrCat("no target \"", std::string(name), "\""), ahead;
  for (const Target* target : targets()) {
    if (target->stand_in != nullptr) {
      if (target->name() == name) return *target;
      absl::StrAppend(&ahead, ahead.empty() ? "" : ", ", "\"", target->name(), "\"");
    } else if (target->name() == name) {
      why = absl::StrCat("code for ", target->name(),
                         " is made on the machine that runs it; save_artifacts() writes it for machines like it");
    }
  }
  throw Error(absl::StrCat("compile_for: ", why, "; the target may be ", ahead));
}

}  // namespace

void detail::backward_from(const Tensor& result) {
  if (!result.requires_grad()) return;
  if (result.numel() == 1) return result.backward();
  result.backward(Tensor::ones(result.sizes(), {result.dtype(), result.device()}));
}

void Artifacts::save(const std::string& path) const { write_artifact(path, packed_); }

Artifacts compile_for(nn::ModuleBase& model, const std::function<void(Device device)>& step, std::string_view target,
                      CompileOptions options) {
  const Target& chosen = ahead_target(target);
  chosen.load_compiler();
  // Forgets which sizes this process has met. Otherwise, a kernel that was compiled for another size before would now
  // be compiled as code that reads its sizes at run time.
  forget_unused_variants();
  std::vector<GeneratorState> none;
  const GeneratorScope same_numbers(GeneratorScope::kReplay, none);
  const std::unique_ptr<const StandIn> device = chosen.stand_in();
  {
    const Unchanged unchanged(model);
    model.to(device->device());
    if (model.repeated_blocks().empty()) compile_module(model, options);
    else compile_regions(model, options);
    step(device->device());
    synchronize(device->device());
  }
  const Target* const only[] = {&chosen};
  const std::vector<io::KernelFile> sections = artifact_sections(only);
  int kernels = 0;
  for (const io::KernelFile& section : sections) kernels += static_cast<int>(section.kernels.size());
  return {chosen.name(), kernels, io::pack_artifact(sections)};
}

}  // namespace rondo::compile
