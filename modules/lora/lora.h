// LoRA: START HERE. Fine-tuning through small matrices beside frozen weights (Hu et al., "LoRA: low-rank adaptation of
// large language models", 2021), on a finished model and without changing its code.
//
//   nn::add_lora(model, {.rank = 8, .alpha = 16, .targets = {"c_attn"}});   // the base is frozen from here on
//   optim::AdamW optimizer(model.parameters(), {.lr = 2e-4});               // frozen parameters take no state
//   ... train, eagerly or after compile::compile_regions(model) ...
//   nn::save_adapter(model, "adapter");                                     // PEFT loads it
//
// A target `y = x W^T + b` becomes `y = x W^T + b + scaling * drop(x) A^T B^T`, with A (rank, in), B (out, rank) and
// scaling = alpha / rank, or alpha / sqrt(rank) with rslora (Kalajdzievski, 2023). A starts as a Linear's weight and B
// at zero, so at first the model computes what it did before. An embedding's rows e become e + scaling * A[index] B^T,
// without dropout; its A starts at zero and its B from N(0, 1). All this is as in PEFT
// (https://github.com/huggingface/peft).
//
// The tree: target `h.0.attn.c_attn` gets a child `lora`, and below it one for each adapter, so the parameters are
// h.0.attn.c_attn.lora.default.lora_A.weight and ....lora_B.weight. The names of the base's parameters stay. An
// embedding's adapter has `lora_embedding_A` (V, rank), the transpose of PEFT's tensor, and `lora_embedding_B` (C,
// rank). Adapters of bf16 and f16 weights are f32, others have their base's dtype.
//
// Invariants: at most one adapter is active. The active adapter is used, and it alone requires gradients. Memory of the
// base's parameters never changes, except by merge_adapter(). Every function checks before it changes anything: if it
// throws, the model is as before.
//
// Ownership: the tree owns adapters. Thread safety: that of the tree (module.h).
#pragma once

#include <string>
#include <vector>

#include "rondo/modules/lora/lora_options.h"
#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Gives the model one more adapter and makes it the active one. Freezes all other parameters and drops their gradients;
// an optimizer that was made before keeps its list of parameters (FormulaOptimizer::add_param_group). A is drawn from
// default_generator(), in the order of the tree. Throws Error if a name of `targets`, `modules_to_save` or a pattern
// matches nothing (the message lists the existing names), if one module of modules_to_save is a part of another, if a
// target is neither a Linear nor an Embedding, if an option is out of range, if there is an adapter of this name, if an
// adapter is merged, or if `mergeable` is asked for and a target is not.
LoraReport add_lora(ModuleBase& model, const LoraOptions& options);

// Returns the names of the model's adapters, sorted.
std::vector<std::string> adapter_names(ModuleBase& model);
// Returns the name of the active adapter; "" if none is active.
std::string active_adapter(ModuleBase& model);
// Returns the options that the adapter was made with. Throws Error if there is no adapter of this name.
LoraOptions adapter_options(ModuleBase& model, const std::string& adapter);
// Activates an adapter: from now on it is used and trained, and no other. Throws Error if there is no adapter of this
// name, or if an adapter is merged.
void set_adapter(ModuleBase& model, const std::string& adapter);
// Deletes an adapter. If it was the active one, no adapter is active afterwards. Throws Error if there is no adapter of
// this name, or if an adapter is merged.
void remove_adapter(ModuleBase& model, const std::string& adapter);

// Activates another adapter while this object lives, for single calls, as set_adapter() does. The destructor activates
// the previous adapter again. The model must outlive this object.
class [[nodiscard]] UseAdapter {
 public:
  UseAdapter(ModuleBase& model, const std::string& adapter);
  ~UseAdapter();
  UseAdapter(const UseAdapter&) = delete;
  UseAdapter& operator=(const UseAdapter&) = delete;

 private:
  ModuleBase& model_;
  std::string before_;
};

// While this object lives, the model computes without adapters, with the base's own values of modules_to_save. No
// adapter requires a gradient then. Throws Error if an adapter is merged. The model must outlive this object.
class [[nodiscard]] DisableAdapters {
 public:
  explicit DisableAdapters(ModuleBase& model);
  ~DisableAdapters();
  DisableAdapters(const DisableAdapters&) = delete;
  DisableAdapters& operator=(const DisableAdapters&) = delete;

 private:
  ModuleBase& model_;
  std::string before_;
};

struct MergeOptions {
  // True: keeps a copy of every weight that is merged, so that unmerge_adapter() gives back the same bits. False:
  // unmerge_adapter() subtracts the update, so its result is rounded twice: within 2 ulp of the larger of weight and
  // update.
  bool keep_base = true;
};
// Adds the active adapter to the base's weights: W += scaling * B A, in the wider of the two dtypes, rounded once.
// Calls then cost what they cost without an adapter, and the adapter gets no gradient. Throws Error if no adapter is
// active, if one is merged, or if another module uses a weight, too, as with a tied embedding: its results would
// change. add_lora() can tell this before the training: LoraReport::unmergeable, LoraOptions::mergeable.
void merge_adapter(ModuleBase& model, const MergeOptions& options = {});
// Undoes merge_adapter(). Throws Error if nothing is merged, or if a merged weight was written since the merge or given
// another device or dtype (ModuleBase::to).
void unmerge_adapter(ModuleBase& model);
// Merges the active adapter for good, unless it is merged already, and deletes all adapters. The active copies of
// modules_to_save become the model's own. The whole model is frozen afterwards; model.requires_grad_() makes it
// trainable again.
void merge_and_unload(ModuleBase& model);

// ---- Files: PEFT's folder of adapter_config.json and adapter_model.safetensors

// Returns the adapter's tensors under the names and in the layout of PEFT's file, such as
// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight". `adapter` "": the active one. Floats keep their dtype.
// The tensors share memory with the model where the layout allows. For GPT2 and Bert the paths get the prefixes
// ("transformer.", "bert.") that Transformers' classes with a head give them, and GPT2's saved weights are (in, out),
// as Conv1D's. ViT's modules have the names of Transformers 5 ("vit.layers.0.attention.q_proj"): an adapter of a whole
// qkv is saved as three that share their A.
StateDict adapter_state_dict(ModuleBase& model, const std::string& adapter = "");

struct SaveAdapterOptions {
  std::string adapter = "";                  // "": the active one
  std::string base_model_name_or_path = "";  // the path from which PEFT loads the base
};
// Writes an adapter's files, and makes the folder if it is missing. Nothing half-written is ever visible: a folder
// without adapter_config.json holds no adapter. Throws FileError; if the disk is full, the folder keeps what it
// held.
void save_adapter(ModuleBase& model, const std::string& folder, const SaveAdapterOptions& options = {});

struct LoadAdapterOptions {
  std::string adapter = "default";
  bool trainable = true;  // false: its parameters never require gradients
};
// Reads an adapter that save_adapter() or PEFT has written, and makes it the active one. If the model has an adapter of
// this name already, its values are replaced, and its rank and modules must be those of the file. Throws
// StateDictError, which lists what differs, if the adapter is not for this model: modules that the model lacks, other
// shapes or another rank, tensors that are missing. Throws FileError if a file cannot be read, or if the config asks
// for something that Rondo does not support (the message names the fields).
LoraReport load_adapter(ModuleBase& model, const std::string& folder, const LoadAdapterOptions& options = {});

}  // namespace rondo::nn
#pragma GCC visibility pop
