// Adapters in PEFT's files.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/lora/lora_config.h"
#include "rondo/modules/lora/lora_install.h"
#include "rondo/modules/lora/lora_layer.h"
#include "rondo/modules/lora/lora_targets.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::nn {
namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kFirst = "base_model.model.";  // begins every name: PEFT's two wrappers

// The parameters of one adapter. The adapter may be in the tree, or not yet.
struct AdapterTensors {
  std::vector<std::pair<ModuleBase*, LoraDelta*>> targets;
  std::vector<std::pair<ModuleBase*, TensorSet*>> saved;
};

AdapterTensors tensors_of(ModuleBase& model, const std::string& adapter) {
  AdapterTensors tensors;
  const AdapterParts parts = adapter_parts(model);
  for (LoraLayer* layer : parts.layers)
    if (LoraDelta* delta = layer->find(adapter); delta != nullptr) tensors.targets.emplace_back(layer->parent(), delta);
  for (SavedCopies* copies : parts.copies)
    if (TensorSet* set = copies->find(adapter); set != nullptr) tensors.saved.emplace_back(copies->parent(), set);
  return tensors;
}

AdapterTensors tensors_of(const UninstalledAdapter& adapter) {
  AdapterTensors tensors;
  for (const UninstalledAdapter::Target& target : adapter.targets)
    tensors.targets.emplace_back(target.module, dynamic_cast<LoraDelta*>(target.adapter.get()));
  for (const UninstalledAdapter::Saved& saved : adapter.saved)
    tensors.saved.emplace_back(saved.module, saved.copies.get());
  return tensors;
}

// How one file names modules: as Transformers' classes with a head do, or as the tree does.
class FileNames {
 public:
  FileNames(const ModuleBase& model, PublishedLayout layout, bool published)
      : model_(model), layout_(std::move(layout)), published_(published), above_(model.path()) {}
  bool published() const { return published_; }
  // Returns the module as one part, or as several if Transformers has several modules for it.
  std::vector<PublishedPart> parts_of(const ModuleBase& module) const {
    const std::string path = path_of(module);
    if (!published_) return {{path}};
    return published_parts(layout_, model_, path);
  }
  // Returns the parts that one adapter has matrices for.
  std::vector<PublishedPart> parts_in(const ModuleBase& module, const LoraDelta& delta) const {
    const auto* apart = dynamic_cast<const LoraLinearParts*>(&delta);
    return apart != nullptr ? apart->parts : parts_of(module);
  }
  // Returns views of the adapter's tensors in the file's layout.
  std::vector<NamedTensor> tensors(const AdapterTensors& adapter) const {
    const NoGrad off;
    std::vector<NamedTensor> list;
    for (const auto& [module, delta] : adapter.targets) add_target(*module, *delta, list);
    for (const auto& [module, set] : adapter.saved)
      for (const auto& slot : set->own_slots()) {
        if (!slot.tensor->defined()) continue;
        const bool turned = layout_.conv1d && path_of(*module).starts_with(*layout_.conv1d) && slot.name == "weight" &&
                            dynamic_cast<Linear*>(module) != nullptr;
        for (const PublishedPart& part : parts_of(*module))
          list.push_back({absl::StrCat(kFirst, part.path, ".", slot.name),
                          turned ? slot.tensor->t() : rows_of(*slot.tensor, part)});
      }
    return list;
  }

 private:
  std::string path_of(const ModuleBase& module) const {
    return above_.empty() ? module.path() : module.path().substr(above_.size() + 1);
  }
  static Tensor rows_of(const Tensor& tensor, const PublishedPart& part) {
    return part.rows > 0 ? tensor.slice(0, {part.row, part.row + part.rows}) : tensor;
  }
  void add_target(const ModuleBase& module, LoraDelta& delta, std::vector<NamedTensor>& list) const {
    if (auto* apart = dynamic_cast<LoraLinearParts*>(&delta); apart != nullptr) {
      for (size_t i = 0; i < apart->parts.size(); ++i)
        for (const NamedTensor& t : apart->matrices[i]->in_file())
          list.push_back({absl::StrCat(kFirst, apart->parts[i].path, ".", t.name), t.tensor});
      return;
    }
    // The adapter is for the whole module, so all parts share A.
    for (const PublishedPart& part : parts_of(module))
      for (const NamedTensor& t : delta.in_file())
        list.push_back({absl::StrCat(kFirst, part.path, ".", t.name),
                        t.name == "lora_B.weight" ? rows_of(t.tensor, part) : t.tensor});
  }

  const ModuleBase& model_;
  const PublishedLayout layout_;
  const bool published_;
  const std::string above_;
};

bool holds(const StateDict& file, const std::string& prefix) {
  const auto at = file.lower_bound(prefix);
  return at != file.end() && at->first.starts_with(prefix);
}

// Finds the targets of the config that the file has tensors for. `missing` gets the names of the others.
LoraMatch match_file(ModuleBase& model, const LoraOptions& options, const StateDict& file, const FileNames& names,
                     std::vector<std::string>& missing) {
  LoraMatch wanted = match_lora_targets_leniently("load_adapter", model, options), match;
  const auto matrix = [&](const ModuleBase& module, const PublishedPart& part) {
    const bool linear = dynamic_cast<const Linear*>(&module) != nullptr;
    return absl::StrCat(kFirst, part.path, linear ? ".lora_A.weight" : ".lora_embedding_A");
  };
  for (const LoraTarget& target : wanted.targets) {
    const std::vector<PublishedPart> parts = names.parts_of(target.module);
    LoraTarget chosen{target.name, target.module};
    for (const PublishedPart& part : parts) {
      const bool asked = target.parts.empty() || std::any_of(target.parts.begin(), target.parts.end(),
                                                             [&](const PublishedPart& p) { return p.row == part.row; });
      if (file.contains(matrix(target.module, part))) chosen.parts.push_back(part);
      else if (asked) missing.push_back(matrix(target.module, part));
    }
    if (chosen.parts.empty()) continue;
    if (parts.size() == 1) chosen.parts.clear();  // the whole module
    match.targets.push_back(chosen);
  }
  for (const NamedModule& saved : wanted.saved) {
    bool any = false;
    for (const PublishedPart& part : names.parts_of(saved.module)) {
      const bool there = holds(file, absl::StrCat(kFirst, part.path, "."));
      any = any || there;
      if (!there && !saved.module.parameters().empty()) missing.push_back(kFirst + part.path);
    }
    if (any) match.saved.push_back(saved);
  }
  set_sizes("load_adapter", model, options, /*lenient=*/true, match.targets);
  return match;
}

// PEFT may also write the weight of an embedding target, under the name "base_layer". Takes these weights out of
// `file`, and reports those that differ from the base's.
void take_out_base_layers(ModuleBase& model, const FileNames& names, StateDict& file, StateDictReport& report) {
  for (const NamedModule& m : base_modules(model)) {
    if (m.name.empty()) continue;
    for (const auto& slot : m.module.own_slots()) {
      const auto found = file.find(absl::StrCat(kFirst, names.parts_of(m.module)[0].path, ".base_layer.", slot.name));
      if (found == file.end()) continue;
      const Tensor& given = found->second;
      bool same = slot.tensor->defined() && given.sizes() == slot.tensor->sizes();
      if (same) same = given.to_vector<double>() == slot.tensor->detach().to_vector<double>();
      if (!same) report.mismatched.push_back(found->first + ": other values than the base's");
      file.erase(found);
    }
  }
}

LoraOptions named_as(LoraOptions options, const std::string& adapter) {
  options.adapter = adapter;
  return options;
}

void rename_file(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) throw FileError(to, "cannot rename onto it: " + error.message());
}

}  // namespace

StateDict adapter_state_dict(ModuleBase& model, const std::string& adapter) try {
  const std::string name = adapter.empty() ? active_adapter(model) : adapter;
  if (name.empty()) throw Error("adapter_state_dict: no adapter is active; name one");
  require_adapter("adapter_state_dict", model, name);
  StateDict state;
  for (NamedTensor& t : FileNames(model, published_layout(model), true).tensors(tensors_of(model, name)))
    state[t.name] = t.tensor.detach();
  return state;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("adapter_state_dict");
}

void save_adapter(ModuleBase& model, const std::string& folder, const SaveAdapterOptions& options) try {
  const std::string name = options.adapter.empty() ? active_adapter(model) : options.adapter;
  if (name.empty()) throw Error("save_adapter: no adapter is active; name one");
  const AdapterInfoPtr info = require_adapter("save_adapter", model, name);
  const PublishedLayout layout = published_layout(model);
  // Names in `targets` that PEFT resolves in the same way are written as they are. Otherwise all paths are written.
  LoraOptions written = info->options;
  const FileNames names(model, layout, true);
  const bool other_names = layout.parts != nullptr;
  if (!names_modules(written) || other_names) {
    written.targets.clear();
    written.layers_to_transform.clear();
    written.layers_pattern.clear();
    for (const auto& [module, delta] : tensors_of(model, name).targets)
      for (const PublishedPart& part : names.parts_in(*module, *delta)) written.targets.push_back(part.path);
  }
  if (other_names) {
    written.modules_to_save.clear();
    for (const auto& [module, set] : tensors_of(model, name).saved)
      for (const PublishedPart& part : names.parts_of(*module)) written.modules_to_save.push_back(part.path);
  }
  io::make_folders(folder);
  io::sweep_temporaries(folder);
  const std::string config_path = folder + "/" + kConfig, weights_path = folder + "/" + kWeights;
  const std::string temporary = absl::StrCat(folder, "/", std::string(io::AtomicFile::kTempPrefix), kWeights);
  // Both files are on the disk before either is visible, and a config never appears together with other weights.
  io::AtomicFile config(config_path);
  config.write(adapter_config_text(written, layout, options.base_model_name_or_path));
  config.prepare();
  io::save_safetensors(temporary, adapter_state_dict(model, name), {{"format", "pt"}});
  if (::unlink(config_path.c_str()) != 0 && errno != ENOENT) {
    const std::string reason = std::generic_category().message(errno);
    std::remove(temporary.c_str());
    throw FileError(config_path, "cannot replace it: " + reason);
  }
  rename_file(temporary, weights_path);
  config.commit();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("save_adapter");
}

LoraReport load_adapter(ModuleBase& model, const std::string& folder, const LoadAdapterOptions& options) try {
  if (folder.empty()) throw Error("load_adapter: the folder's name is empty");
  const std::string config_path = folder + "/" + kConfig, weights_path = folder + "/" + kWeights;
  const LoraOptions given = named_as(read_adapter_config(config_path), options.adapter);
  std::error_code error;
  if (!std::filesystem::exists(weights_path, error) && std::filesystem::exists(folder + "/adapter_model.bin", error))
    throw FileError(folder + "/adapter_model.bin", "is a pickle; save the adapter as safetensors");
  StateDict file = io::load_safetensors(weights_path).tensors;
  const std::string what = absl::StrCat(model.type_name(), ", adapter ", folder);

  const PublishedLayout layout = published_layout(model);
  const bool published = holds(file, kFirst + layout.prefix);
  const FileNames names(model, layout, published);
  const std::vector<std::string> existing = adapter_names(model);
  const bool exists = std::find(existing.begin(), existing.end(), options.adapter) != existing.end();
  require_unmerged("load_adapter", adapter_parts(model));

  StateDictReport report;
  take_out_base_layers(model, names, file, report);
  if (!report.empty()) throw StateDictError(what, report);
  UninstalledAdapter made;
  std::vector<NamedTensor> targets;
  if (exists) {
    const AdapterInfoPtr info = require_adapter("load_adapter", model, options.adapter);
    const LoraOptions& had = info->options;
    if (had.alpha != given.alpha || had.rslora != given.rslora || had.alpha_pattern != given.alpha_pattern)
      throw FileError(config_path,
                      absl::StrCat("scales otherwise than the model's adapter '", options.adapter, "': lora_alpha ",
                                   given.alpha, " and ", had.alpha, ", use_rslora ", given.rslora, " and ", had.rslora,
                                   ", or by another alpha_pattern", "; load it under another name"));
    targets = names.tensors(tensors_of(model, options.adapter));
  } else {
    check_new_adapter("load_adapter", model, given);
    std::vector<std::string> missing;
    const LoraMatch match = match_file(model, given, file, names, missing);
    const SkipInit skip;
    made = make_adapter(match, given, options.trainable);
    targets = names.tensors(tensors_of(made));
    for (std::string& name : missing) targets.push_back({std::move(name), Tensor::empty({0})});
  }
  load_tensors(targets, file, /*strict=*/true, what);
  if (!exists && made.targets.empty())
    throw FileError(config_path, absl::StrCat("target_modules match no module of ", model.type_name()));
  if (!exists) return install_adapter(model, std::move(made));
  activate(model, options.adapter);
  LoraReport loaded;
  for (const auto& [module, delta] : tensors_of(model, options.adapter).targets)
    loaded.targets.push_back(module->path());
  for (const Tensor& p : model.parameters()) {
    loaded.total += p.numel();
    if (p.requires_grad()) loaded.trainable += p.numel();
  }
  return loaded;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("load_adapter");
}

}  // namespace rondo::nn
