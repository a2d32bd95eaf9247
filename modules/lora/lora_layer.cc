#include "rondo/modules/lora/lora_layer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/amp.h"

namespace rondo::nn {
namespace {

// Returns the dtype of an adapter's matrices: f32 beside 16-bit weights, because 16-bit matrices would lose small
// updates.
DType dtype_beside(const Tensor& weight) { return is_low_precision(weight.dtype()) ? kF32 : weight.dtype(); }

}  // namespace

double AdapterInfo::scaling(const LoraSize& size) const {
  const FloatingPointScope floating_point;
  const auto rank = static_cast<double>(size.rank);
  return floating_point.here(size.alpha / (options.rslora ? std::sqrt(rank) : rank));
}

// ---- The matrices of an adapter

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

Tensor& weight_of(ModuleBase& target) {
  if (auto* linear = dynamic_cast<Linear*>(&target); linear != nullptr) return linear->weight;
  return dynamic_cast<Embedding&>(target).weight;
}

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

std::map<std::string, AdapterInfoPtr> infos_of(const AdapterParts& parts) {
  std::map<std::string, AdapterInfoPtr> infos;
  for (const LoraLayer* layer : parts.layers)
    for (ModuleBase* module : layer->children())
      infos.try_emplace(module->name(), dynamic_cast<LoraDelta&>(*module).info);
  return infos;
}

AdapterInfoPtr require_adapter(const char* function, ModuleBase& model, const std::string& adapter) {
  const std::map<std::string, AdapterInfoPtr> infos = infos_of(adapter_parts(model));
  if (const auto found = infos.find(adapter); found != infos.end()) return found->second;
  const auto add_name = [](std::string* out, const auto& one) { out->append(one.first); };
  throw Error(absl::StrCat(function, ": ", model.type_name(), " has no adapter '", adapter, "'; it has ",
                           infos.empty() ? "none" : absl::StrJoin(infos, ", ", add_name)));
}

void activate(ModuleBase& model, const std::string& adapter) {
  visit_parts(model, [&](auto& part) { part.activate(adapter); });
}

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

}  // namespace rondo::nn
