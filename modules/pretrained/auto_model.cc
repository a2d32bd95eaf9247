#include "rondo/modules/pretrained/auto_model.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/families.h"
#include "rondo/modules/pretrained/image_processor.h"
#include "rondo/modules/pretrained/weight_files.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::nn {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kAdapter = "adapter_config.json";
constexpr const char* kGeneration = "generation_config.json";

std::string model_types() {
  std::vector<std::string> names;
  for (const Family* family : families())
    names.insert(names.end(), family->model_types.begin(), family->model_types.end());
  return absl::StrJoin(names, ", ");
}

// Finds the family of a model_type; null if there is none.
const Family* find_family(const std::string& model_type) {
  for (const Family* family : families())
    for (const char* name : family->model_types)
      if (model_type == name) return family;
  return nullptr;
}

// Returns transformers' name of a floating dtype.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case kF64: return "float64";
    case kBF16: return "bfloat16";
    case kF16: return "float16";
    default: return "float32";
  }
}

void save(ModuleBase& module, const Published& published, std::vector<ConfigField> config, const std::string& folder,
          const SaveOptions& options) {
  if (!published.why_unpublished.empty())
    throw Error(
        absl::StrCat("save_pretrained: no published model is like this one: it has ", published.why_unpublished));
  const io::TensorMap tensors = published_tensors(module, published);
  io::make_folders(folder);
  io::sweep_temporaries(folder);
  // A folder without config.json is incomplete. So the old config.json is removed first, and no program loads a mix of
  // old and new shards.
  const fs::path root(folder);
  std::error_code error;
  if (fs::exists(root / "model.safetensors.index.json", error)) fs::remove(root / kConfig, error);
  if (error) throw FileError((root / kConfig).string(), "cannot replace it: " + error.message());
  save_weights(tensors, folder, options);
  set_field(config, "architectures", absl::StrCat("[\n    ", json_text(published.architecture), "\n  ]"));
  DType dtype = kF32;
  for (const auto& [name, tensor] : tensors) dtype = tensor.dtype();
  const bool old_name = std::any_of(config.begin(), config.end(),
                                    [](const ConfigField& field) { return field.name == "torch_dtype"; });
  set_field(config, old_name ? "torch_dtype" : "dtype", json_text(torch_name(dtype)));
  write_fields((root / kConfig).string(), config);
}

}  // namespace

void save_pretrained(ModuleBase& model, const std::string& folder, const SaveOptions& options) try {
  const Published published = describe(model);
  std::vector<ConfigField> config = {{"model_type", json_text(published.model_type)}};
  config.insert(config.end(), published.config.begin(), published.config.end());
  if (!published.generation.empty() && published.why_unpublished.empty()) {
    io::make_folders(folder);
    write_fields((fs::path(folder) / kGeneration).string(), published.generation);
  }
  save(model, published, std::move(config), folder, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("save_pretrained");
}

// ---- PretrainedModel

PretrainedModel::PretrainedModel(Kind kind, const std::string& folder, const PretrainedOptions& options) try {
  const char* const kNames[] = {"AutoModel",
                                "AutoModelForCausalLM",
                                "AutoModelForSequenceClassification",
                                "AutoModelForTokenClassification",
                                "AutoModelForMaskedLM",
                                "AutoModelForImageClassification",
                                "AutoModelForSemanticSegmentation",
                                "AutoModelForImageTextToText"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::kImageTextToText) + 1);
  const std::string name = kNames[static_cast<int>(kind)];
  if (options.dtype && !is_floating(*options.dtype))
    throw Error(
        absl::StrCat(name, "::from_pretrained: dtype must be floating, got ", std::string(name_of(*options.dtype))));
  const bool has_labels = kind == Kind::kSequenceClassification || kind == Kind::kTokenClassification ||
                          kind == Kind::kImageClassification || kind == Kind::kSegmentation;
  if (!has_labels && (options.num_labels || !options.label_names.empty() || options.problem_type))
    throw Error(absl::StrCat(name,
                             "::from_pretrained: num_labels, label_names and problem_type are of models that sort "
                             "into classes; this one has none"));
  const std::string path = (fs::path(folder) / kConfig).string();
  std::error_code unreadable;
  if (!fs::exists(folder, unreadable) && !unreadable)
    throw FileError(folder, "no such folder. A model is read from a folder on this machine; nothing is downloaded");
  const bool has_adapter = fs::exists(fs::path(folder) / kAdapter, unreadable);
  if (has_adapter && !fs::exists(path, unreadable))
    throw FileError(folder, "holds an adapter and no model: load its base, then call load_adapter()");
  ConfigFields config(path, io::read_text(path, ConfigFields::kMostBytes));
  if (options.pad_token_id) config.set("pad_token_id", json_text(*options.pad_token_id));
  config_ = config.fields();
  model_type_ = config.word("model_type", "");
  family_ = find_family(model_type_);
  ConfigProblems problems;
  if (!config.has("model_type")) problems.missing = {"model_type"};
  else if (family_ == nullptr)
    problems.unsupported = {absl::StrCat("model_type: ", io::shown(model_type_), " (there are ", model_types(), ")")};
  if (!problems.empty()) throw ConfigError(path, problems);
  module_ = family_->make(config, static_cast<Task>(kind), options);
  if (module_ == nullptr) {
    problems.unsupported = {absl::StrCat("model_type: ", io::shown(model_type_), ": ", name,
                                         "::from_pretrained: there is no such model of the family ", model_type_)};
    throw ConfigError(path, problems);
  }
  published_ = std::make_unique<const Published>(describe(*module_, model_type_));
  const WeightFiles files(folder, options.map ? io::Reading::kMap : io::Reading::kCopy);
  load_weights(*module_, *published_, files, options);
  if (has_adapter) load_adapter(*module_, folder, {.trainable = options.train_adapter});
  module_->eval();
  if (options.num_labels || !options.label_names.empty()) {
    std::erase_if(config_, [](const ConfigField& field) { return field.name == "num_labels"; });
    const auto fields = options.label_names.empty() ? label_fields(*options.num_labels)
                                                    : label_fields(options.label_names);
    for (const ConfigField& field : fields) set_field(config_, field.name, field.json);
  }
  if (options.problem_type) set_field(config_, "problem_type", json_text(name_of(*options.problem_type)));
  label_names_ = read_label_names(config_, path);
  const auto bring = [&](const char* name) {
    const std::string file = (fs::path(folder) / name).string();
    if (fs::exists(file, unreadable)) beside_.emplace_back(name, io::read_text(file, ConfigFields::kMostBytes));
  };
  if (kind >= Kind::kImageClassification) bring(ImageProcessor::kFile);
  if (kind == Kind::kImageTextToText) bring(kGeneration);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("from_pretrained");
}

PretrainedModel::PretrainedModel(PretrainedModel&&) noexcept = default;
PretrainedModel& PretrainedModel::operator=(PretrainedModel&&) noexcept = default;
PretrainedModel::~PretrainedModel() = default;

ModuleBase& PretrainedModel::operator*() const {
  if (module_ == nullptr) throw Error("PretrainedModel: the model was moved to another object");
  return *module_;
}

void PretrainedModel::save_pretrained(const std::string& folder, const SaveOptions& options) const try {
  ModuleBase& module = **this;  // throws if it was moved from, before published_ is read
  const Published now = describe(module, model_type_);
  std::vector<ConfigField> config = config_;
  for (const ConfigField& field : now.corrections) set_field(config, field.name, field.json);
  for (const auto& [name, text] : beside_) {
    const std::string file = (fs::path(folder) / name).string();
    std::error_code unreadable;
    if (fs::exists(file, unreadable)) continue;
    io::make_folders(folder);
    io::write_file_atomic(file, text);
  }
  save(module, now, std::move(config), folder, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("save_pretrained");
}

std::string PretrainedModel::published_name(std::string_view name) const try {
  static_cast<void>(**this);  // throws if it was moved from
  for (const PublishedTensor& tensor : published_->tensors)
    if (tensor.name == name && tensor.rows == 0) return tensor.file_name;
  throw Error(absl::StrCat(published_->architecture, ": no tensor of published files is ", std::string(name)));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("published_name");
}

// ---- The tasks

AutoModel AutoModel::from_pretrained(const std::string& folder, const PretrainedOptions& options) {
  return AutoModel(Kind::kBase, folder, options);
}
Tensor AutoModel::operator()(TensorArg idx, const Tensor& mask, const Tensor& segments) {
  ModuleBase& model = **this;
  if (!family_->takes_mask && (mask.defined() || segments.defined()))
    throw Error(absl::StrCat("AutoModel: ", model_type(), " takes neither a mask nor segments"));
  return family_->features(model, idx, mask, segments);
}

AutoModelForCausalLM AutoModelForCausalLM::from_pretrained(const std::string& folder,
                                                           const PretrainedOptions& options) {
  return AutoModelForCausalLM(Kind::kCausalLM, folder, options);
}
Tensor AutoModelForCausalLM::operator()(TensorArg idx, const Tensor& positions) {
  return family_->language.logits(**this, idx, positions);
}
CausalLM& AutoModelForCausalLM::causal_lm() const { return *as<CausalLM>(); }
int64_t AutoModelForCausalLM::vocab_size() const { return family_->language.vocab_size(**this); }
int64_t AutoModelForCausalLM::max_length() const { return causal_lm().cache_options().max_length; }
Tensor AutoModelForCausalLM::loss(const Tensor& idx, const Tensor& targets, std::source_location where) {
  return loss(idx, targets, Tensor(), where);
}
Tensor AutoModelForCausalLM::loss(const Tensor& idx, const Tensor& targets, const Tensor& positions,
                                  std::source_location where) {
  return family_->language.loss(**this, idx, targets, positions, where);
}

AutoModelForSequenceClassification AutoModelForSequenceClassification::from_pretrained(
    const std::string& folder, const PretrainedOptions& options) {
  return AutoModelForSequenceClassification(Kind::kSequenceClassification, folder, options);
}
TextClassifierFacts AutoModelForSequenceClassification::facts() const { return family_->facts(**this); }
Tensor AutoModelForSequenceClassification::operator()(TensorArg idx, const Tensor& mask, const Tensor& segments) {
  return family_->sequence.logits(**this, idx, mask, segments);
}
Tensor AutoModelForSequenceClassification::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments,
                                                const Tensor& targets, std::source_location where) {
  return family_->sequence.loss(**this, idx, mask, segments, targets, where);
}

AutoModelForTokenClassification AutoModelForTokenClassification::from_pretrained(const std::string& folder,
                                                                                 const PretrainedOptions& options) {
  return AutoModelForTokenClassification(Kind::kTokenClassification, folder, options);
}
Tensor AutoModelForTokenClassification::operator()(TensorArg idx, const Tensor& mask, const Tensor& segments) {
  return family_->token.logits(**this, idx, mask, segments);
}
Tensor AutoModelForTokenClassification::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments,
                                             const Tensor& targets, std::source_location where) {
  return family_->token.loss(**this, idx, mask, segments, targets, where);
}

AutoModelForMaskedLM AutoModelForMaskedLM::from_pretrained(const std::string& folder,
                                                           const PretrainedOptions& options) {
  return AutoModelForMaskedLM(Kind::kMaskedLM, folder, options);
}
Tensor AutoModelForMaskedLM::operator()(TensorArg idx, const Tensor& mask, const Tensor& segments) {
  return family_->masked.logits(**this, idx, mask, segments);
}
Tensor AutoModelForMaskedLM::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
                                  std::source_location where) {
  return family_->masked.loss(**this, idx, mask, segments, targets, where);
}

AutoModelForImageClassification AutoModelForImageClassification::from_pretrained(const std::string& folder,
                                                                                 const PretrainedOptions& options) {
  return AutoModelForImageClassification(Kind::kImageClassification, folder, options);
}
Tensor AutoModelForImageClassification::operator()(TensorArg images) { return family_->image.logits(**this, images); }
Tensor AutoModelForImageClassification::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return family_->image.loss(**this, images, targets, where);
}

AutoModelForSemanticSegmentation AutoModelForSemanticSegmentation::from_pretrained(const std::string& folder,
                                                                                   const PretrainedOptions& options) {
  return AutoModelForSemanticSegmentation(Kind::kSegmentation, folder, options);
}
Tensor AutoModelForSemanticSegmentation::operator()(TensorArg images) {
  return family_->segmentation.logits(**this, images);
}
Tensor AutoModelForSemanticSegmentation::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return family_->segmentation.loss(**this, images, targets, where);
}

AutoModelForImageTextToText AutoModelForImageTextToText::from_pretrained(const std::string& folder,
                                                                         const PretrainedOptions& options) {
  return AutoModelForImageTextToText(Kind::kImageTextToText, folder, options);
}
Tensor AutoModelForImageTextToText::operator()(TensorArg images, const Tensor& idx, const Tensor& mask) {
  return family_->caption.logits(**this, images, idx, mask);
}
Tensor AutoModelForImageTextToText::loss(const Tensor& images, const Tensor& labels, std::source_location where) {
  return family_->caption.loss(**this, images, labels, where);
}
VisionEncoderDecoder& AutoModelForImageTextToText::vision_encoder_decoder() const {
  return *as<VisionEncoderDecoder>();
}

}  // namespace rondo::nn
