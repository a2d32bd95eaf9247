#include "rondo/modules/lora/lora_install.h"

#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rondo::nn {

void check_new_adapter(const char* function, ModuleBase& model, const LoraOptions& options) {
  const auto fail = [&](const std::string& why) { throw Error(absl::StrCat(function, ": ", why)); };
  if (options.rank <= 0) fail(absl::StrCat("rank must be positive, got ", options.rank));
  if (!std::isfinite(options.alpha)) fail(absl::StrCat("alpha must be finite, got ", options.alpha));
  for (const auto& [pattern, rank] : options.rank_pattern)
    if (rank <= 0) fail(absl::StrCat("rank_pattern '", pattern, "': the rank must be positive, got ", rank));
  for (const auto& [pattern, alpha] : options.alpha_pattern)
    if (!std::isfinite(alpha)) fail(absl::StrCat("alpha_pattern '", pattern, "': must be finite, got ", alpha));
  for (const int64_t layer : options.layers_to_transform)
    if (layer < 0) fail(absl::StrCat("layers_to_transform: there is no layer ", layer));
  if (options.layers_to_transform.empty() && !options.layers_pattern.empty())
    fail("layers_pattern says where layers are, so it needs layers_to_transform");
  if (!options.layers_to_transform.empty() && !names_modules(options))
    fail("layers_to_transform goes with names in targets, not with all-linear or a target_pattern");
  if (!(options.dropout >= 0 && options.dropout < 1))
    fail(absl::StrCat("dropout must be in [0, 1), got ", options.dropout));
  const std::string& name = options.adapter;
  if (name.find_first_not_of("0123456789") == name.npos || name.find('.') != name.npos)
    fail(absl::StrCat("the adapter's name '", name, "' is empty, only digits, or has a dot"));
  const AdapterParts parts = adapter_parts(model);
  require_unmerged(function, parts);
  if (infos_of(parts).contains(name))
    fail(absl::StrCat(model.type_name(), " has an adapter '", name,
                      "' already; give another name, or remove_adapter()"));
}

UninstalledAdapter make_adapter(const LoraMatch& match, const LoraOptions& options, bool trainable) {
  UninstalledAdapter made;
  auto info = std::make_shared<AdapterInfo>(AdapterInfo{options, trainable});
  made.info = info;
  for (const LoraTarget& target : match.targets) {
    made.report.targets.push_back(target.name);
    std::unique_ptr<ModuleBase> adapter;
    auto* linear = dynamic_cast<Linear*>(&target.module);
    if (linear != nullptr && !target.parts.empty())
      adapter = std::make_unique<LoraLinearParts>(*linear, target.parts, info, target.sizes);
    else if (linear != nullptr) adapter = std::make_unique<LoraLinear>(*linear, info, target.sizes[0]);
    else adapter = std::make_unique<LoraEmbedding>(dynamic_cast<Embedding&>(target.module), info, target.sizes[0]);
    made.targets.push_back({&target.module, std::move(adapter)});
  }
  for (const NamedModule& saved : match.saved) {
    made.report.saved.push_back(saved.name);
    for (const NamedModule& part : base_modules(saved.module)) {
      if (part.module.own_slots().empty()) continue;
      // A copy of the base's tensors, not of another adapter's.
      ModuleBase* from = &part.module;
      for (ModuleBase* child : part.module.children())
        if (dynamic_cast<TensorSet*>(child) != nullptr) from = child;
      made.saved.push_back({&part.module, std::make_unique<TensorSet>(*from, /*copies=*/true, info)});
    }
  }
  return made;
}

LoraReport install_adapter(ModuleBase& model, UninstalledAdapter adapter) {
  std::vector<ModuleBase*> targets;
  for (const UninstalledAdapter::Target& target : adapter.targets) targets.push_back(target.module);
  adapter.report.unmergeable = unmergeable(model, targets);
  const std::string name = adapter.info->options.adapter;
  AdapterParts used;  // the tree's parts that this adapter is in, for take_out()
  const auto part_of = [](ModuleBase & module, auto& parts, const auto& make) -> auto& {
    using Part = std::remove_reference_t<decltype(*make())>;
    parts.reserve(parts.size() + 1);
    for (ModuleBase* child : module.children())
      if (auto* part = dynamic_cast<Part*>(child); part != nullptr) return *parts.emplace_back(part);
    Part& made = module.attach(std::is_same_v<Part, LoraLayer> ? "lora" : "modules_to_save", make());
    return *parts.emplace_back(&made);
  };
  struct Parameter {
    Tensor tensor;
    bool requires_grad;
    Tensor grad;
  };
  std::vector<Parameter> before;
  for (const Tensor& p : model.parameters()) before.push_back({p, p.requires_grad(), p.grad()});
  try {
    for (Parameter& p : before) p.tensor.requires_grad_(false).set_grad(Tensor());
    for (UninstalledAdapter::Target& target : adapter.targets)
      part_of(*target.module, used.layers, [] {
        return std::make_unique<LoraLayer>();
      }).attach(name, std::move(target.adapter));
    for (UninstalledAdapter::Saved& saved : adapter.saved) {
      SavedCopies& copies = part_of(*saved.module, used.copies,
                                    [&] { return std::make_unique<SavedCopies>(*saved.module); });
      if (copies.children().empty())
        saved.module->attach("original_module",
                             std::make_unique<TensorSet>(*saved.module, /*copies=*/false, AdapterInfoPtr()));
      copies.attach(name, std::move(saved.copies));
    }
    for (const Tensor& p : model.parameters()) {
      adapter.report.total += p.numel();
      if (p.requires_grad() && adapter.info->trainable) adapter.report.trainable += p.numel();
    }
  } catch (const std::exception&) {
    take_out(used, name);
    for (Parameter& p : before) p.tensor.requires_grad_(p.requires_grad).set_grad(p.grad);
    throw;
  }
  activate(model, name);
  return std::move(adapter.report);
}

}  // namespace rondo::nn
