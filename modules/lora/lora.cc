#include "rondo/modules/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/lora/lora_layer.h"
#include "rondo/modules/lora/lora_targets.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/op/amp.h"

namespace rondo::nn {
namespace {

// 16-bit matrices would lose small updates.
DType dtype_beside(const Tensor& weight) { return is_low_precision(weight.dtype()) ? kF32 : weight.dtype(); }

}  // namespace

double AdapterInfo::scaling(const LoraSize& size) const {
  const FloatingPointScope floating_point;
  const auto rank = static_cast<double>(size.rank);
  return floating_point.here(size.alpha / (options.rslora ? std::sqrt(rank) : rank));
}

// ---- The parts

LoraLinear::LoraLinear(const Linear& base, AdapterInfoPtr info_, LoraSize size_, int64_t rows)
    : LoraDelta(std::move(info_)),
      size(size_),
      lora_A(child("lora_A", base.weight.size(1), size.rank, LinearOptions{.bias = false})),
      lora_B(child("lora_B", size.rank, rows > 0 ? rows : base.weight.size(0), LinearOptions{.bias = false})),
      lora_dropout(child("lora_dropout", info->options.dropout)) {
  const NoGrad off;
  lora_B.weight.zero_();
  to(dtype_beside(base.weight));
  to(base.weight.device());
}
Tensor LoraLinear::forward(const Tensor& x) {
  const Tensor in = amp::autocast_dtype() ? x : x.to(lora_A.weight.dtype());
  return lora_B(lora_A(lora_dropout(in)) * info->scaling(size));
}
Tensor LoraLinear::weight_delta() { return ops::matmul(lora_B.weight, lora_A.weight) * info->scaling(size); }
std::vector<NamedTensor> LoraLinear::in_file() {
  return {{"lora_A.weight", lora_A.weight}, {"lora_B.weight", lora_B.weight}};
}

LoraLinearParts::LoraLinearParts(const Linear& base, std::vector<PublishedPart> parts_, AdapterInfoPtr info_,
                                 const std::vector<LoraSize>& sizes)
    : LoraDelta(std::move(info_)), n_out(base.weight.size(0)), parts(std::move(parts_)) {
  for (size_t i = 0; i < parts.size(); ++i)
    matrices.push_back(child(parts[i].leaf(), base, info, sizes[i], parts[i].rows).make<LoraLinear>());
}
Tensor LoraLinearParts::joined(const std::vector<Tensor>& of_parts, int64_t dim) const {
  std::vector<Tensor> all;
  Dims sizes = of_parts[0].sizes();
  int64_t row = 0;
  const auto fill_to = [&](int64_t next) {
    if (next == row) return;
    sizes[static_cast<size_t>(dim)] = next - row;
    all.push_back(Tensor::zeros(sizes, {of_parts[0].dtype(), of_parts[0].device()}));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    fill_to(parts[i].row);
    all.push_back(of_parts[i]);
    row = parts[i].row + parts[i].rows;
  }
  fill_to(n_out);
  return ops::cat(all, dim);
}
Tensor LoraLinearParts::forward(const Tensor& x) {
  std::vector<Tensor> of_parts;
  for (const auto& part : matrices) of_parts.push_back((*part)(x));
  return joined(of_parts, x.rank() - 1);
}
Tensor LoraLinearParts::weight_delta() {
  std::vector<Tensor> of_parts;
  for (const auto& part : matrices) of_parts.push_back(part->weight_delta());
  return joined(of_parts, 0);
}
std::vector<NamedTensor> LoraLinearParts::in_file() {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < parts.size(); ++i)
    for (const NamedTensor& t : matrices[i]->in_file())
      tensors.push_back({absl::StrCat(parts[i].leaf(), ".", t.name), t.tensor});
  return tensors;
}

LoraEmbedding::LoraEmbedding(const Embedding& base, AdapterInfoPtr info_, LoraSize size_)
    : LoraDelta(std::move(info_)),
      size(size_),
      lora_embedding_A(child("lora_embedding_A", base.weight.size(0), size.rank, base.options)),
      lora_embedding_B(child("lora_embedding_B", size.rank, base.weight.size(1), LinearOptions{.bias = false})) {
  const NoGrad off;
  lora_embedding_A.weight.zero_();
  if (!SkipInit::active())
    lora_embedding_B.weight.copy_(Tensor::randn(lora_embedding_B.weight.sizes(), lora_embedding_B.weight.device()));
  to(dtype_beside(base.weight));
  to(base.weight.device());
}
Tensor LoraEmbedding::forward(const Tensor& indices) {
  return lora_embedding_B(lora_embedding_A(indices) * info->scaling(size));
}
Tensor LoraEmbedding::weight_delta() {
  return ops::matmul(lora_embedding_A.weight, lora_embedding_B.weight.t()) * info->scaling(size);
}
std::vector<NamedTensor> LoraEmbedding::in_file() {
  const NoGrad off;
  return {{"lora_embedding_A", lora_embedding_A.weight.t()}, {"lora_embedding_B", lora_embedding_B.weight}};
}

void LoraLayer::around(const ModuleCall& call, absl::FunctionRef<void()> forward) {
  forward();
  if (active == nullptr || merged != nullptr) return;
  Tensor& y = *call.result;
  y = (y + active->delta(*call.inputs[0])).to(y.dtype());
}

LoraDelta* LoraLayer::find(const std::string& adapter) const {
  for (ModuleBase* module : children())
    if (module->name() == adapter) return dynamic_cast<LoraDelta*>(module);
  return nullptr;
}

void LoraLayer::activate(const std::string& adapter) {
  active = find(adapter);
  for (ModuleBase* module : children()) {
    auto* delta = dynamic_cast<LoraDelta*>(module);
    module->requires_grad_(delta == active && delta->info->trainable);
  }
  note_change();
}

namespace {
Tensor& weight_of(ModuleBase& target) {
  if (auto* linear = dynamic_cast<Linear*>(&target); linear != nullptr) return linear->weight;
  return dynamic_cast<Embedding&>(target).weight;
}
}  // namespace

void LoraLayer::merge(bool keep_base) {
  const NoGrad off;
  Tensor& weight = weight_of(*parent());
  const Tensor update = active->weight_delta();
  const Tensor before = keep_base ? weight.detach().clone() : Tensor();
  if (weight.dtype() == update.dtype()) weight.add_(update);
  else weight.copy_(weight.to(update.dtype()) + update);
  kept = before;
  merged = active;
  merged_version = weight.version();
  merged_dtype = weight.dtype();
  merged_device = weight.device();
  note_change();
}

void LoraLayer::unmerge() {
  const NoGrad off;
  Tensor& weight = weight_of(*parent());
  if (kept.defined()) {
    weight.copy_(kept);
  } else {
    const Tensor update = merged->weight_delta();
    if (weight.dtype() == update.dtype()) weight.sub_(update);
    else weight.copy_(weight.to(update.dtype()) - update);
  }
  kept = Tensor();
  merged = nullptr;
  note_change();
}

TensorSet::TensorSet(ModuleBase& of, bool copies, AdapterInfoPtr info_)
    : info(std::move(info_)), slots([&] {
        for (const Slot& slot : of.own_slots()) {
          const Tensor& given = *slot.tensor;
          Tensor value = given.defined() && copies ? given.detach().clone() : given;
          const bool train = value.defined() && value.requires_grad();
          if (!slot.is_parameter) buffer(slot.name, value);
          else parameter(slot.name, value);
          if (value.defined() && !copies && slot.is_parameter) value.requires_grad_(train);
        }
        return own_slots();
      }()) {}

TensorSet* SavedCopies::find(const std::string& adapter) const {
  for (ModuleBase* module : children())
    if (module->name() == adapter) return dynamic_cast<TensorSet*>(module);
  return nullptr;
}

void SavedCopies::activate(const std::string& adapter) {
  TensorSet* chosen = find(adapter);
  for (ModuleBase* module : children())
    module->requires_grad_(module == chosen && dynamic_cast<TensorSet&>(*module).info->trainable);
  for (ModuleBase* module : parent()->children())
    if (chosen == nullptr && module->name() == "original_module") chosen = dynamic_cast<TensorSet*>(module);
  invariant(chosen != nullptr, "modules_to_save without the original");
  for (const Slot& slot : slots)
    for (const Slot& source : chosen->slots)
      if (source.name == slot.name) *slot.tensor = *source.tensor;
  note_change();
}

// ---- The tree

namespace {
void collect_base(ModuleBase& module, const std::string& prefix, std::vector<NamedModule>& out) {
  out.push_back({prefix, module});
  for (ModuleBase* inner : module.children())
    if (dynamic_cast<AdapterPart*>(inner) == nullptr)
      collect_base(*inner, prefix.empty() ? inner->name() : absl::StrCat(prefix, ".", inner->name()), out);
}
}  // namespace

std::vector<NamedModule> base_modules(ModuleBase& model) {
  std::vector<NamedModule> modules;
  collect_base(model, "", modules);
  return modules;
}

namespace {
// Calls `on_part` with each LoraLayer and SavedCopies, in the order of the tree. Needs no memory.
template <class OnPart> void visit_parts(const ModuleBase& module, const OnPart& on_part) {
  for (ModuleBase* child : module.children()) {
    if (auto* layer = dynamic_cast<LoraLayer*>(child); layer != nullptr) on_part(*layer);
    if (auto* copies = dynamic_cast<SavedCopies*>(child); copies != nullptr) on_part(*copies);
  }
  for (const ModuleBase* child : module.children())
    if (dynamic_cast<const AdapterPart*>(child) == nullptr) visit_parts(*child, on_part);
}
}  // namespace

AdapterParts adapter_parts(ModuleBase& model) {
  AdapterParts parts;
  visit_parts(model, [&]<class Part>(Part& part) {
    if constexpr (std::is_same_v<Part, LoraLayer>) parts.layers.push_back(&part);
    else parts.copies.push_back(&part);
  });
  return parts;
}

void require_unmerged(const char* function, const AdapterParts& parts) {
  for (const LoraLayer* layer : parts.layers)
    if (layer->merged != nullptr)
      throw Error(absl::StrCat(function, ": the adapter '", layer->merged->info->options.adapter,
                               "' is merged; call unmerge_adapter() first"));
}

namespace {
// The adapters' infos, by name.
std::map<std::string, AdapterInfoPtr> infos_of(const AdapterParts& parts) {
  std::map<std::string, AdapterInfoPtr> infos;
  for (const LoraLayer* layer : parts.layers)
    for (ModuleBase* module : layer->children())
      infos.try_emplace(module->name(), dynamic_cast<LoraDelta&>(*module).info);
  return infos;
}
}  // namespace

AdapterInfoPtr require_adapter(const char* function, ModuleBase& model, const std::string& adapter) {
  const std::map<std::string, AdapterInfoPtr> infos = infos_of(adapter_parts(model));
  if (const auto found = infos.find(adapter); found != infos.end()) return found->second;
  throw Error(absl::StrCat(function, ": ", model.type_name(), " has no adapter '", adapter, "'; it has ",
                           infos.empty() ? "none" : absl::StrJoin(adapter_names(model), ", ")));
}

void activate(ModuleBase& model, const std::string& adapter) {
  visit_parts(model, [&](auto& part) { part.activate(adapter); });
}

// ---- Making one

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

NewAdapter make_adapter(const LoraMatch& match, const LoraOptions& options, bool trainable) {
  NewAdapter made;
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

namespace {

// Paths of those whose weight is used elsewhere in the model, too: merging would change what is computed there.
std::vector<std::string> unmergeable(const ModuleBase& model, const std::vector<ModuleBase*>& targets) {
  std::map<const TensorImpl*, int> uses;
  for (const Tensor* slot : model.tensor_slots())
    if (slot->defined()) ++uses[slot->impl()];
  const std::string output = published_layout(model).embedding_is_output;
  std::vector<std::string> paths;
  for (ModuleBase* target : targets)
    if (uses[weight_of(*target).impl()] > 1 || (!output.empty() && target->path() == output))
      paths.push_back(target->path());
  return paths;
}

void require_mergeable(const char* function, const std::vector<std::string>& refused, const char* advice) {
  if (!refused.empty())
    throw Error(absl::StrCat(function, ": ", refused[0],
                             ".weight is used elsewhere in the model, too, and merging would change what is computed "
                             "there; ",
                             advice));
}

}  // namespace

namespace {

// Takes an adapter's parts out of the tree, and what only they needed. Needs no memory.
void take_out(const AdapterParts& parts, const std::string& adapter) {
  for (LoraLayer* layer : parts.layers) {
    if (layer->find(adapter) != nullptr) layer->detach(adapter);
    if (layer->children().empty()) layer->parent()->detach("lora");
  }
  for (SavedCopies* copies : parts.copies) {
    if (copies->find(adapter) != nullptr) copies->detach(adapter);
    if (!copies->children().empty()) continue;
    ModuleBase& module = *copies->parent();
    const auto is_original = [](const ModuleBase* child) { return child->name() == "original_module"; };
    if (std::any_of(module.children().begin(), module.children().end(), is_original)) module.detach("original_module");
    module.detach("modules_to_save");
  }
}

}  // namespace

LoraReport install_adapter(ModuleBase& model, NewAdapter adapter) {
  std::vector<ModuleBase*> targets;
  for (const NewAdapter::Target& target : adapter.targets) targets.push_back(target.module);
  adapter.report.unmergeable = unmergeable(model, targets);
  const std::string name = adapter.info->options.adapter;
  AdapterParts used;  // by the adapter
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
    for (NewAdapter::Target& target : adapter.targets)
      part_of(*target.module, used.layers, [] {
        return std::make_unique<LoraLayer>();
      }).attach(name, std::move(target.adapter));
    for (NewAdapter::Saved& saved : adapter.saved) {
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

// The layers of the active adapter.
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
