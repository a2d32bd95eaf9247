// The modules that adapters add to a tree, and functions that find them. This header is not installed; users include
// lora.h.
//
//   h.0.attn.c_attn                     Linear, a target
//     lora                              LoraLayer: wraps the target's calls, knows which adapter is active
//       default                         LoraLinear, LoraLinearParts or LoraEmbedding: one adapter's matrices
//   classifier                          Linear, a module to save
//     modules_to_save                   SavedCopies: gives the classifier the tensors of the active adapter
//       default                         TensorSet: one adapter's copies
//     original_module                   TensorSet: the base's tensors
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/layers/layers.h"
#include "rondo/modules/lora/lora_options.h"
#include "rondo/modules/lora/published_layout.h"
#include "rondo/modules/module.h"

namespace rondo::nn {

// The options that may differ from target to target: rank_pattern, alpha_pattern.
struct LoraSize {
  int64_t rank = 0;
  double alpha = 0;
  bool operator==(const LoraSize&) const = default;
};

// Shared by all parts of one adapter.
struct AdapterInfo {
  LoraOptions options;
  bool trainable = true;
  double scaling(const LoraSize& size) const;
};
using AdapterInfoPtr = std::shared_ptr<const AdapterInfo>;

// Marks the modules of adapters: what is below them is no part of the base.
struct AdapterPart {
  virtual ~AdapterPart() = default;
};

// One adapter of one target.
struct LoraDelta : AdapterPart {
  explicit LoraDelta(AdapterInfoPtr info) : info(std::move(info)) {}
  const AdapterInfoPtr info;
  // Returns what the adapter adds to the result of the target for x.
  virtual Tensor delta(const Tensor& x) = 0;
  // Returns what the adapter adds to the target's weight, with the weight's shape.
  virtual Tensor weight_delta() = 0;
  // Returns views of the parameters, with the names and in the layout of PEFT's file.
  virtual std::vector<NamedTensor> in_file() = 0;
  virtual ModuleBase& as_module() = 0;
};

// delta(x) = B(A(dropout(x)) * scaling).
struct LoraLinear final : Module<LoraLinear>, LoraDelta {
  // `rows`: the number of outputs of a part of the base; 0: all outputs.
  LoraLinear(const Linear& base, AdapterInfoPtr info, LoraSize size, int64_t rows = 0);
  const LoraSize size;
  Linear lora_A;
  Linear lora_B;
  Dropout lora_dropout;
  Tensor forward(const Tensor& x);  // (..., in) -> (..., out), in A's dtype
  Tensor delta(const Tensor& x) override { return (*this)(x); }
  Tensor weight_delta() override;
  std::vector<NamedTensor> in_file() override;
  ModuleBase& as_module() override { return *this; }
};

// A LoraLinear for each of some parts of a target. For the other rows of the target's result, the delta is zero.
struct LoraLinearParts final : Module<LoraLinearParts>, LoraDelta {
  LoraLinearParts(const Linear& base, std::vector<PublishedPart> parts, AdapterInfoPtr info,
                  const std::vector<LoraSize>& sizes);
  const int64_t n_out;
  const std::vector<PublishedPart> parts;             // ordered by row
  std::vector<std::unique_ptr<LoraLinear>> matrices;  // one for each part, named PublishedPart::leaf()
  Tensor forward(const Tensor& x);                    // (..., in) -> (..., out)
  Tensor delta(const Tensor& x) override { return (*this)(x); }
  Tensor weight_delta() override;
  std::vector<NamedTensor> in_file() override;  // "q_proj.lora_A.weight"
  ModuleBase& as_module() override { return *this; }

 private:
  // Joins the tensors of the parts along `dim`, with zeros between them.
  Tensor joined(const std::vector<Tensor>& of_parts, int64_t dim) const;
};

// delta(index) = B(A[index] * scaling). For the base's padding row, the delta is zero.
struct LoraEmbedding final : Module<LoraEmbedding>, LoraDelta {
  LoraEmbedding(const Embedding& base, AdapterInfoPtr info, LoraSize size);
  const LoraSize size;
  Embedding lora_embedding_A;
  Linear lora_embedding_B;
  Tensor forward(const Tensor& indices);  // i64 (...) -> (..., C)
  Tensor delta(const Tensor& indices) override { return (*this)(indices); }
  Tensor weight_delta() override;
  std::vector<NamedTensor> in_file() override;
  ModuleBase& as_module() override { return *this; }
};

// All adapters of one target.
struct LoraLayer final : Module<LoraLayer>, CallHook, AdapterPart {
  void around(const ModuleCall& call, absl::FunctionRef<void()> forward) override;
  LoraDelta* find(const std::string& adapter) const;  // null: this target has no such adapter
  // Makes `adapter` the active one. "", or a name that this target lacks: only the base is active.
  void activate(const std::string& adapter);
  void merge(bool keep_base);
  void unmerge();

  LoraDelta* active = nullptr;
  LoraDelta* merged = nullptr;
  Tensor kept;                  // the base's weight before the merge; undefined: not kept
  uint32_t merged_version = 0;  // the weight's version right after the merge
  DType merged_dtype = kF32;
  Device merged_device;
};

// Tensors with the names of another module's own tensors.
struct TensorSet final : Module<TensorSet>, AdapterPart {
  // `copies`: the tensors are copies; otherwise they are shared with the module. `info` is null for the base's tensors.
  TensorSet(ModuleBase& of, bool copies, AdapterInfoPtr info);
  const AdapterInfoPtr info;
  const std::vector<Slot> slots;
};

// All adapters' copies of one module's own tensors.
struct SavedCopies final : Module<SavedCopies>, AdapterPart {
  explicit SavedCopies(ModuleBase& of) : slots(of.own_slots()) {}
  const std::vector<Slot> slots;  // the module's
  TensorSet* find(const std::string& adapter) const;
  // Makes the module's members hold this adapter's copies, or the base's tensors if the adapter has none.
  void activate(const std::string& adapter);
};

struct AdapterParts {
  std::vector<LoraLayer*> layers;
  std::vector<SavedCopies*> copies;
};
AdapterParts adapter_parts(ModuleBase& model);

// Returns the infos of all adapters, by name.
std::map<std::string, AdapterInfoPtr> infos_of(const AdapterParts& parts);

// Returns a target's own weight.
Tensor& weight_of(ModuleBase& target);
// Returns the paths of targets whose weight is used elsewhere in the model, too: merging would change the other use.
std::vector<std::string> unmergeable(const ModuleBase& model, const std::vector<ModuleBase*>& targets);

// Returns the modules of the base, in the order of the tree.
std::vector<NamedModule> base_modules(ModuleBase& model);

// Throw Error: require_unmerged() if an adapter is merged, require_adapter() if there is no adapter of this name.
void require_unmerged(const char* function, const AdapterParts& parts);
AdapterInfoPtr require_adapter(const char* function, ModuleBase& model, const std::string& adapter);
// Makes an adapter the active one; "": none. Needs no memory, since destructors call it.
void activate(ModuleBase& model, const std::string& adapter);
// Takes an adapter's parts out of the tree, and the layers that have no adapter left. Needs no memory.
void take_out(const AdapterParts& parts, const std::string& adapter);

}  // namespace rondo::nn
