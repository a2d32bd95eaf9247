// Makes an adapter and puts it into a model's tree. This header is not installed; users include lora.h.
#pragma once

#include <memory>
#include <vector>

#include "rondo/modules/lora/lora_layer.h"
#include "rondo/modules/lora/lora_options.h"
#include "rondo/modules/lora/lora_targets.h"

namespace rondo::nn {

// An adapter that is made, but not in the tree yet.
struct UninstalledAdapter {
  struct Target {
    ModuleBase* module;
    std::unique_ptr<ModuleBase> adapter;  // a LoraLinear, LoraLinearParts or LoraEmbedding
  };
  struct Saved {
    ModuleBase* module;
    std::unique_ptr<TensorSet> copies;
  };
  AdapterInfoPtr info;
  std::vector<Target> targets;
  std::vector<Saved> saved;
  LoraReport report;
};
// Checks the options of a new adapter. Throws Error for options out of range, a name that is taken, and a merged
// adapter. `function`: its name, for messages.
void check_new_adapter(const char* function, ModuleBase& model, const LoraOptions& options);
UninstalledAdapter make_adapter(const LoraMatch& match, const LoraOptions& options, bool trainable);
// Attaches and activates the adapter, and freezes the rest of the model.
LoraReport install_adapter(ModuleBase& model, UninstalledAdapter adapter);

}  // namespace rondo::nn
