// How a model looks in a published folder: which tensors its file holds, under which names, and what its config.json
// says. Each family has one file (gpt2.cc, llama.cc, bert.cc, vit.cc, segformer.cc, vision_encoder_decoder.cc) with the
// code for reading, for saving, and for all calls.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/modules/layers/classification_loss.h"
#include "rondo/modules/module.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/modules/pretrained/pretrained_options.h"
#include "rondo/modules/pretrained/text_classifier_facts.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::nn {

struct GPT2Config;
struct ViTConfig;

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
  // In files of a model with a head, names of tensors below the head begin with this: "transformer.". In files of the
  // bare model they do not.
  std::string prefix;
  std::vector<PublishedTensor> tensors;
  // Tied tensors that a file may hold a second time: the second name, and the name of the tensor that it must equal.
  std::map<std::string, std::string> aliases;
  // Name endings of tensors that the model computes itself, although files may hold them.
  std::vector<std::string> computed;
  // New values of fields of the original config.json, because the tree has changed: a head may be no longer tied.
  std::vector<ConfigField> corrections;
  std::vector<ConfigField> config;      // fields of a config.json, without model_type, architectures and dtype
  std::vector<ConfigField> generation;  // fields of a generation_config.json; empty: there is none
  std::string why_unpublished;          // the part of the model that `config` cannot describe; "": none
};

enum class Task {
  kBase,
  kCausalLM,
  kSequenceClassification,
  kTokenClassification,
  kMaskedLM,
  kImageClassification,
  kSegmentation,
  kImageTextToText
};

// The calls of AutoModelForCausalLM.
struct LanguageCalls {
  Tensor (*logits)(ModuleBase& model, TensorArg idx, const Tensor& positions) = nullptr;
  Tensor (*loss)(ModuleBase& model, const Tensor& idx, const Tensor& targets, const Tensor& positions,
                 std::source_location where) = nullptr;
  int64_t (*vocab_size)(const ModuleBase& model) = nullptr;
};
// The calls of the classifiers of texts, and of masked language models.
struct TextCalls {
  Tensor (*logits)(ModuleBase& model, TensorArg idx, const Tensor& mask, const Tensor& segments) = nullptr;
  Tensor (*loss)(ModuleBase& model, const Tensor& idx, const Tensor& mask, const Tensor& segments,
                 const Tensor& targets, std::source_location where) = nullptr;
};
struct ImageCalls {
  Tensor (*logits)(ModuleBase& model, TensorArg images) = nullptr;
  Tensor (*loss)(ModuleBase& model, const Tensor& images, const Tensor& targets, std::source_location where) = nullptr;
};

struct CaptionCalls {
  Tensor (*logits)(ModuleBase& model, TensorArg images, const Tensor& idx, const Tensor& mask) = nullptr;
  Tensor (*loss)(ModuleBase& model, const Tensor& images, const Tensor& labels, std::source_location where) = nullptr;
};

// A family of published models: everything that is particular to it. A family is a constant at the end of its file, and
// an entry in kFamilies (families.cc).
struct Family {
  std::initializer_list<const char*> model_types;  // the model_types in config.json
  std::initializer_list<const char*> classes;      // the classes in modules/, for a message
  // Reads a config.json, checks it, and makes the model of a task without memory for its parameters. Null: the family
  // has no model for this task.
  std::unique_ptr<ModuleBase> (*make)(ConfigFields& config, Task task, const PretrainedOptions& options);
  // Fills `out` and returns true if the module is one of the family.
  bool (*describe)(ModuleBase& module, Published& out);
  // The calls on a model that `make` made; null for tasks that the family does not have.
  Tensor (*features)(ModuleBase& model, TensorArg idx, const Tensor& mask, const Tensor& segments) = nullptr;
  bool takes_mask = false;  // `features` takes a mask and segments; otherwise they are undefined
  LanguageCalls language = {};
  TextCalls sequence = {}, token = {}, masked = {};
  TextClassifierFacts (*facts)(const ModuleBase& model) = nullptr;  // the facts of a classifier of sequences
  ImageCalls image = {}, segmentation = {};
  CaptionCalls caption = {};
};

// ---- For the families' files

// Read the config of a model without a head, and note what is wrong with it. Also for models that contain such a model.
GPT2Config read_gpt2(ConfigFields& config, const PretrainedOptions& options);
ViTConfig read_vit(ConfigFields& config, const PretrainedOptions& options);
// Returns the number of classes that the caller wants: num_labels, or as many as label_names. Throws Error if these two
// differ.
std::optional<int64_t> wanted_labels(const PretrainedOptions& options);
// Returns the number of classes: the caller's, or that of the file's id2label, or of its num_labels, or 2.
int64_t read_labels(ConfigFields& config, const PretrainedOptions& options);
// Returns the caller's problem_type, or the file's; nullopt: targets decide (classification_loss.h).
std::optional<ProblemType> read_problem_type(ConfigFields& config, int64_t num_classes,
                                             const PretrainedOptions& options);
// Returns id2label and label2id for these names, or for n classes without names, as transformers writes them.
std::vector<ConfigField> label_fields(const std::vector<std::string>& names);
std::vector<ConfigField> label_fields(int64_t n);
// Returns the names in these fields' id2label, by number; empty if the field is absent or has another form.
std::vector<std::string> read_label_names(const std::vector<ConfigField>& fields, const std::string& path);
ops::GeluKind read_gelu(ConfigFields& config, std::string_view name, std::string_view otherwise);
std::string gelu_name(ops::GeluKind kind);
// Returns the caller's probability, or the file's.
double read_dropout(ConfigFields& config, std::string_view name, double otherwise, const PretrainedOptions& options);
// Returns the calls of a task whose models are of class M.
template <class M> constexpr LanguageCalls language_calls() {
  return {
      .logits =
          [](ModuleBase& model, TensorArg idx, const Tensor& positions) {
            M& m = dynamic_cast<M&>(model);
            return positions.defined() ? m(idx, positions) : m(idx);
          },
      .loss = [](ModuleBase& model, const Tensor& idx, const Tensor& targets, const Tensor& positions,
                 std::source_location where) { return dynamic_cast<M&>(model).loss(idx, targets, positions, where); },
      .vocab_size = [](const ModuleBase& model) { return dynamic_cast<const M&>(model).config.vocab_size; }};
}
template <class M> constexpr TextCalls text_calls() {
  return {
      .logits = [](ModuleBase& model, TensorArg idx, const Tensor& mask,
                   const Tensor& segments) { return dynamic_cast<M&>(model)(idx, mask, segments); },
      .loss =
          [](ModuleBase& model, const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
             std::source_location where) { return dynamic_cast<M&>(model).loss(idx, mask, segments, targets, where); }};
}
// Returns all tensors of the module's state dict, under the names `prefix` + name in the file.
std::vector<PublishedTensor> same_names(ModuleBase& module, const std::string& prefix = "");

}  // namespace rondo::nn
