// Adapters in PEFT's files.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "rondo/modules/lora_config.h"
#include "rondo/modules/lora_layer.h"
#include "rondo/modules/lora_targets.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/safetensors.h"

namespace rondo::nn {
namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kFirst = "base_model.model.";  // of every name: PEFT's two wrappers

// The parameters of one adapter, in the tree or before.
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

AdapterTensors tensors_of(const NewAdapter& adapter) {
  AdapterTensors tensors;
  for (const NewAdapter::Target& target : adapter.targets)
    tensors.targets.emplace_back(target.module, dynamic_cast<LoraDelta*>(target.adapter.get()));
  for (const NewAdapter::Saved& saved : adapter.saved) tensors.saved.emplace_back(saved.module, saved.copies.get());
  return tensors;
}

// How one file names modules: as Transformers' classes with a head do, or as the tree does.
class FileNames {
 public:
  FileNames(const ModuleBase& model, PublishedLayout layout, bool published)
      : layout_(std::move(layout)), published_(published), above_(model.path()) {}
  std::string of(const ModuleBase& module) const {
    const std::string path = above_.empty() ? module.path() : module.path().substr(above_.size() + 1);
    return kFirst + (published_ ? layout_.path_of(path) : path);
  }
  // Views in the file's layout.
  std::vector<NamedTensor> tensors(const AdapterTensors& adapter) const {
    const NoGrad off;
    std::vector<NamedTensor> list;
    for (const auto& [module, delta] : adapter.targets)
      for (const NamedTensor& t : delta->in_file()) list.push_back({absl::StrCat(of(*module), ".", t.name), t.tensor});
    for (const auto& [module, set] : adapter.saved)
      for (const auto& slot : set->own_slots()) {
        if (!slot.tensor->defined()) continue;
        const bool turned = layout_.linear_is_conv1d && slot.name == "weight" &&
                            dynamic_cast<Linear*>(module) != nullptr;
        list.push_back({absl::StrCat(of(*module), ".", slot.name), turned ? slot.tensor->t() : *slot.tensor});
      }
    return list;
  }

 private:
  const PublishedLayout layout_;
  const bool published_;
  const std::string above_;
};

// What the file has for this target: the name of its first matrix, or "".
std::string first_matrix(const StateDict& file, const FileNames& names, ModuleBase& module) {
  const bool linear = dynamic_cast<Linear*>(&module) != nullptr;
  const std::string name = names.of(module) + (linear ? ".lora_A.weight" : ".lora_embedding_A");
  return file.contains(name) ? name : "";
}

bool holds(const StateDict& file, const std::string& prefix) {
  const auto at = file.lower_bound(prefix);
  return at != file.end() && at->first.starts_with(prefix);
}

// The targets of the config that the file has tensors for; `missing` gets the others.
LoraMatch match_file(ModuleBase& model, const LoraOptions& options, const StateDict& file, const FileNames& names,
                     std::vector<std::string>& missing) {
  LoraMatch wanted = match_lora_targets_leniently("load_adapter", model, options), match;
  for (const NamedModule& target : wanted.targets) {
    if (!first_matrix(file, names, target.module).empty()) match.targets.push_back(target);
    else missing.push_back(names.of(target.module) + ".lora_A.weight");
  }
  for (const NamedModule& saved : wanted.saved) {
    if (holds(file, names.of(saved.module) + ".")) match.saved.push_back(saved);
    else missing.push_back(names.of(saved.module));
  }
  return match;
}

// PEFT may write the weight of an embedding target, too, which it calls "base_layer". It must be the base's.
void take_out_base_layers(ModuleBase& model, const FileNames& names, StateDict& file, StateDictReport& report) {
  for (const NamedModule& m : base_modules(model)) {
    if (m.name.empty()) continue;
    for (const auto& slot : m.module.own_slots()) {
      const auto found = file.find(absl::StrCat(names.of(m.module), ".base_layer.", slot.name));
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

StateDict adapter_state_dict(ModuleBase& model, const std::string& adapter) {
  const std::string name = adapter.empty() ? active_adapter(model) : adapter;
  if (name.empty()) throw Error("adapter_state_dict: no adapter is active; name one");
  require_adapter("adapter_state_dict", model, name);
  StateDict state;
  for (NamedTensor& t : FileNames(model, published_layout(model), true).tensors(tensors_of(model, name)))
    state[t.name] = t.tensor.detach();
  return state;
}

void save_adapter(ModuleBase& model, const std::string& folder, const SaveAdapterOptions& options) {
  const std::string name = options.adapter.empty() ? active_adapter(model) : options.adapter;
  if (name.empty()) throw Error("save_adapter: no adapter is active; name one");
  const AdapterInfoPtr info = require_adapter("save_adapter", model, name);
  const PublishedLayout layout = published_layout(model);
  // A list of names that PEFT resolves as we do stays a list; anything else is spelled out.
  std::vector<std::string> targets = info->options.targets;
  if (!info->options.target_pattern.empty() || targets == std::vector<std::string>{"all-linear"}) {
    targets.clear();
    for (const auto& [module, delta] : tensors_of(model, name).targets)
      targets.push_back(FileNames(model, layout, true).of(*module).substr(std::string_view(kFirst).size()));
  }
  io::make_folders(folder);
  io::sweep_temporaries(folder);
  const std::string config_path = folder + "/" + kConfig, weights_path = folder + "/" + kWeights;
  const std::string temporary = absl::StrCat(folder, "/", std::string(io::AtomicFile::kTempPrefix), kWeights);
  // Both files are on the disk before either is visible, and a config never stands beside weights that are not its own.
  io::AtomicFile config(config_path);
  config.write(adapter_config_text(info->options, targets, layout, options.base_model_name_or_path));
  config.prepare();
  io::save_safetensors(temporary, adapter_state_dict(model, name), {{"format", "pt"}});
  if (::unlink(config_path.c_str()) != 0 && errno != ENOENT) {
    const std::string reason = std::generic_category().message(errno);
    std::remove(temporary.c_str());
    throw FileError(config_path, "cannot replace it: " + reason);
  }
  rename_file(temporary, weights_path);
  config.commit();
}

LoraReport load_adapter(ModuleBase& model, const std::string& folder, const LoadAdapterOptions& options) {
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
  const AdapterParts parts = adapter_parts(model);
  require_unmerged("load_adapter", parts);

  StateDictReport report;
  take_out_base_layers(model, names, file, report);
  if (!report.empty()) throw StateDictError(what, report);
  NewAdapter made;
  std::vector<NamedTensor> targets;
  if (exists) {
    const AdapterInfoPtr info = require_adapter("load_adapter", model, options.adapter);
    const LoraOptions& had = info->options;
    if (had.alpha != given.alpha || had.rslora != given.rslora)
      throw FileError(config_path, absl::StrCat("scales otherwise than the model's adapter '", options.adapter,
                                                "': lora_alpha ", given.alpha, " and ", had.alpha, ", use_rslora ",
                                                given.rslora, " and ", had.rslora, "; load it under another name"));
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
  if (!exists) return install_adapter(model, std::move(made));
  activate(parts, options.adapter);
  LoraReport loaded;
  for (const auto& [module, delta] : tensors_of(model, options.adapter).targets)
    loaded.targets.push_back(module->path());
  for (const Tensor& p : model.parameters()) {
    loaded.total += p.numel();
    if (p.requires_grad()) loaded.trainable += p.numel();
  }
  return loaded;
}

}  // namespace rondo::nn
