// How a model looks in a published folder: which tensors its file holds, under which names, and what its config.json
// says. Each family has one file (gpt2.cc, llama.cc, bert.cc, vit.cc) with both directions.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/modules/classification_loss.h"
#include "rondo/modules/module.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::nn {

// One tensor of the file: the module's tensor `name`, or rows of it, or its transpose.
struct PublishedTensor {
  std::string file_name;
  std::string name;
  bool transposed = false;
  int64_t row = 0;
  int64_t rows = 0;  // 0: all
};

struct Published {
  std::string model_type;    // "gpt2"; set before describe(): the family that the config.json names
  std::string architecture;  // the class in transformers: "GPT2LMHeadModel"
  // What the names of the model below the head begin with: "transformer.". Files of the bare model lack it.
  std::string prefix;
  std::vector<PublishedTensor> tensors;
  // Tied tensors that a file may hold a second time: their name, and that of the tensor they equal.
  std::map<std::string, std::string> aliases;
  // Ends of the names of tensors that files may hold and that the model computes itself.
  std::vector<std::string> computed;
  // Fields that an original config.json must change, because the tree has changed: a head that is tied no more.
  std::vector<ConfigField> corrections;
  std::vector<ConfigField> config;  // of a config.json, without model_type, architectures and dtype
  std::string why_unpublished;      // what `config` cannot say about the model; "" if it says everything
};

// `model_type` chooses among families that share a class; "": the first that fits. Throws Error if the module is none
// of the published models.
Published describe(ModuleBase& module, const std::string& model_type = "");
// Each fills `out` and returns true if the module is one of its family.
bool describe_gpt2(ModuleBase& module, Published& out);
bool describe_llama(ModuleBase& module, Published& out);
bool describe_bert(ModuleBase& module, Published& out);
bool describe_vit(ModuleBase& module, Published& out);

enum class Task { kBase, kCausalLM, kSequenceClassification, kTokenClassification, kImageClassification };

// Each reads a config.json, checks it, and makes the model of a task without memory for its parameters. Null: the
// family has no model for this task.
using MakeModel = std::unique_ptr<ModuleBase> (*)(ConfigFields& config, Task task, const PretrainedOptions& options);
std::unique_ptr<ModuleBase> make_gpt2(ConfigFields& config, Task task, const PretrainedOptions& options);
std::unique_ptr<ModuleBase> make_llama(ConfigFields& config, Task task, const PretrainedOptions& options);
std::unique_ptr<ModuleBase> make_bert(ConfigFields& config, Task task, const PretrainedOptions& options);
std::unique_ptr<ModuleBase> make_vit(ConfigFields& config, Task task, const PretrainedOptions& options);

// ---- For the families' files

// The fields that every config.json may have, and the check of all: call it after the family's own.
void check_config(ConfigFields& config, const PretrainedOptions& options);
// The number of classes: the caller's, or that of the file's id2label, or of its num_labels, or 2.
int64_t read_labels(ConfigFields& config, const PretrainedOptions& options);
// The caller's problem_type, or the file's; nullopt: targets decide (classification_loss.h).
std::optional<ProblemType> read_problem_type(ConfigFields& config, int64_t n_class, const PretrainedOptions& options);
// id2label and label2id. By number: as transformers writes them where nobody has named the classes.
std::vector<ConfigField> label_fields(const std::vector<std::string>& names);
std::vector<ConfigField> label_fields(int64_t n);
// The names in these fields' id2label, by number; empty if there is none or if it is no such list.
std::vector<std::string> read_label_names(const std::vector<ConfigField>& fields, const std::string& path);
ops::GeluKind read_gelu(ConfigFields& config, std::string_view name, std::string_view otherwise);
std::string gelu_name(ops::GeluKind kind);
// The caller's probability, or the file's.
double read_dropout(ConfigFields& config, std::string_view name, double otherwise, const PretrainedOptions& options);
// All tensors of a state dict under `prefix` + their names.
std::vector<PublishedTensor> same_names(ModuleBase& module, const std::string& prefix = "");

}  // namespace rondo::nn
