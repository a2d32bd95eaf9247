#include "rondo/modules/lora/lora.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/modules/lora/lora_install.h"
#include "rondo/modules/lora/lora_layer.h"
#include "rondo/modules/lora/lora_targets.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::nn {
namespace {

void require_mergeable(const char* function, const std::vector<std::string>& refused, const char* advice) {
  if (!refused.empty())
    throw Error(absl::StrCat(function, ": ", refused[0],
                             ".weight is used elsewhere in the model, too, and merging would change what is computed "
                             "there; ",
                             advice));
}

}  // namespace

LoraReport add_lora(ModuleBase& model, const LoraOptions& options) try {
  check_new_adapter("add_lora", model, options);
  const LoraMatch match = match_lora_targets("add_lora", model, options);
  if (options.mergeable) {
    std::vector<ModuleBase*> targets;
    for (const LoraTarget& target : match.targets) targets.push_back(&target.module);
    require_mergeable("add_lora", unmergeable(model, targets), "leave this target out, or do without `mergeable`");
  }
  return install_adapter(model, make_adapter(match, options, /*trainable=*/true));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("add_lora");
}

// ---- Several adapters

std::vector<std::string> adapter_names(ModuleBase& model) try {
  std::vector<std::string> names;
  for (const auto& [name, info] : infos_of(adapter_parts(model))) names.push_back(name);
  return names;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("adapter_names");
}

std::string active_adapter(ModuleBase& model) try {
  for (const LoraLayer* layer : adapter_parts(model).layers)
    if (layer->active != nullptr) return layer->active->info->options.adapter;
  return "";
} catch (const std::bad_alloc&) {
  throw_out_of_memory("active_adapter");
}

LoraOptions adapter_options(ModuleBase& model, const std::string& adapter) try {
  return require_adapter("adapter_options", model, adapter)->options;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("adapter_options");
}

void set_adapter(ModuleBase& model, const std::string& adapter) try {
  require_adapter("set_adapter", model, adapter);
  require_unmerged("set_adapter", adapter_parts(model));
  activate(model, adapter);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("set_adapter");
}

void remove_adapter(ModuleBase& model, const std::string& adapter) try {
  require_adapter("remove_adapter", model, adapter);
  const AdapterParts parts = adapter_parts(model);
  require_unmerged("remove_adapter", parts);
  if (active_adapter(model) == adapter) activate(model, "");
  take_out(parts, adapter);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("remove_adapter");
}

UseAdapter::UseAdapter(ModuleBase& model, const std::string& adapter) : model_(model), before_(active_adapter(model)) {
  set_adapter(model, adapter);
}
UseAdapter::~UseAdapter() { activate(model_, before_); }

DisableAdapters::DisableAdapters(ModuleBase& model) try : model_(model), before_(active_adapter(model)) {
  require_unmerged("DisableAdapters", adapter_parts(model));
  activate(model, "");
} catch (const std::bad_alloc&) {
  throw_out_of_memory("DisableAdapters");
}
DisableAdapters::~DisableAdapters() { activate(model_, before_); }

// ---- Merging

namespace {

// Returns the layers that have the active adapter.
std::vector<LoraLayer*> layers_to_merge(const char* function, ModuleBase& model) {
  const AdapterParts parts = adapter_parts(model);
  require_unmerged(function, parts);
  std::vector<LoraLayer*> layers;
  std::vector<ModuleBase*> targets;
  for (LoraLayer* layer : parts.layers)
    if (layer->active != nullptr) layers.push_back(layer), targets.push_back(layer->parent());
  if (layers.empty()) throw Error(absl::StrCat(function, ": no adapter is active; call set_adapter() first"));
  require_mergeable(function, unmergeable(model, targets), "leave this target out, or do not merge");
  return layers;
}

}  // namespace

void merge_adapter(ModuleBase& model, const MergeOptions& options) try {
  for (LoraLayer* layer : layers_to_merge("merge_adapter", model)) layer->merge(options.keep_base);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("merge_adapter");
}

void unmerge_adapter(ModuleBase& model) try {
  std::vector<LoraLayer*> merged;
  for (LoraLayer* layer : adapter_parts(model).layers)
    if (layer->merged != nullptr) merged.push_back(layer);
  if (merged.empty()) throw Error("unmerge_adapter: no adapter is merged");
  for (const LoraLayer* layer : merged) {
    const Tensor& weight = weight_of(*layer->parent());
    if (weight.version() == layer->merged_version) continue;
    const bool moved = weight.dtype() != layer->merged_dtype || !(weight.device() == layer->merged_device);
    throw Error(absl::StrCat("unmerge_adapter: ", layer->parent()->path(), ".weight was ",
                             moved
                                 ? "given another device or dtype by .to() after merge_adapter(); unmerge first, then "
                                   "call .to()"
                                 : "written after merge_adapter(), so the weight before is not known any more",
                             "; merge_and_unload() keeps it as it is"));
  }
  for (LoraLayer* layer : merged) layer->unmerge();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("unmerge_adapter");
}

void merge_and_unload(ModuleBase& model) try {
  const AdapterParts parts = adapter_parts(model);
  const bool merged = std::any_of(parts.layers.begin(), parts.layers.end(),
                                  [](const LoraLayer* layer) { return layer->merged != nullptr; });
  if (!merged)
    for (LoraLayer* layer : layers_to_merge("merge_and_unload", model)) layer->merge(/*keep_base=*/false);
  for (LoraLayer* layer : parts.layers) layer->parent()->detach("lora");
  for (SavedCopies* copies : parts.copies) {
    ModuleBase& module = *copies->parent();
    module.detach("original_module");
    module.detach("modules_to_save");
  }
  model.requires_grad_(false);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("merge_and_unload");
}

}  // namespace rondo::nn
