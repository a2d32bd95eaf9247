// Published models: START HERE. A folder in Hugging Face's layout (config.json, model.safetensors or the shards of
// model.safetensors.index.json) becomes a model of modules/, and a model becomes such a folder.
//
//   auto model = nn::AutoModelForCausalLM::from_pretrained("gpt2", {.dtype = kF32});
//   optim::AdamW optimizer(model.parameters(), {.lr = 1e-4});
//   model.loss(idx, targets).backward();
//   model.save_pretrained("tuned");                      // what transformers reads
//
// Families: gpt2; llama (Llama 2 and 3), qwen2, qwen3, mistral; bert (MiniLM, too), roberta, distilbert; vit;
// segformer; vision-encoder-decoder (vit and gpt2). What a training loop calls is written `model.`: loss(),
// parameters(), train(). `*model` is the module (module.h) for functions that take one, `model.as<nn::Llama>()` the
// concrete class. A model comes back in evaluation mode, as in transformers: model.train() turns dropout on.
//
// Nothing is ignored silently. ConfigError lists the fields of config.json that would change the mathematics and are
// not supported, and the unknown ones. StateDictError lists the tensors that are missing, unexpected or of another
// shape. Both come before the weights are read. FileError: a file is missing, truncated or malformed. Nothing in a
// folder is run or trusted. harmless_fields.cc has the table of the fields that change nothing.
//
// A folder that also holds PEFT's adapter_config.json gives the model with that adapter, named "default", as in
// transformers: the base is frozen, and so is the adapter unless PretrainedOptions::train_adapter. merge_and_unload()
// (lora.h) makes one model of both, which save_pretrained() takes.
//
// Memory: the module is built without memory for its parameters, then each tensor is read into its place. A tensor that
// is transposed or converted passes through a buffer of 4 MB. A file that is truncated meanwhile is a FileError; with
// PretrainedOptions::map, which shares pages instead of reading them, it is SIGBUS.
//
// Thread safety: that of modules (Note [Threads] in runtime/base/parallel.h). Loading and saving different models at
// once is fine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/modules/pretrained/config_error.h"
#include "rondo/modules/pretrained/pretrained_options.h"
#include "rondo/modules/pretrained/text_classifier_facts.h"
#include "rondo/runtime/base/dtype.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct GPT2;
struct Llama;
struct VisionEncoderDecoder;
struct Family;
struct Published;
class CausalLM;
struct ConfigField;

// The base of all Auto classes. Movable: after a move, every call on the old object throws Error.
class PretrainedModel {
 public:
  ModuleBase& operator*() const;
  // Returns the module, for functions that this class does not have. ModuleBase has no loss().
  ModuleBase* operator->() const { return &**this; }
  // As in module.h.
  std::vector<Tensor> parameters() const { return (**this).parameters(); }
  std::vector<NamedTensor> named_parameters() const { return (**this).named_parameters(); }
  int64_t num_parameters() const { return (**this).num_parameters(); }
  StateDict state_dict() const { return (**this).state_dict(); }
  StateDictReport load_state_dict(const StateDict& state, bool strict = true, bool assign = false) {
    return (**this).load_state_dict(state, strict, assign);
  }
  void train(bool on = true) { (**this).train(on); }
  void eval() { (**this).eval(); }
  void to(DType dtype) { (**this).to(dtype); }
  void to(Device device) { (**this).to(device); }
  void zero_grad(bool set_to_none = true) { (**this).zero_grad(set_to_none); }
  // Returns the concrete model, or null if it is not an M.
  template <class M> M* as() const { return dynamic_cast<M*>(&**this); }
  // Returns the model_type of config.json: "gpt2".
  const std::string& model_type() const { return model_type_; }
  // Returns the names of the classes, by number: config.json's id2label. Empty if it has none.
  const std::vector<std::string>& label_names() const { return label_names_; }
  // Writes config.json and the weights in their present dtype. Fields of the original config.json stay, but for
  // architectures, dtype and a changed number of labels. Throws FileError, and Error if the tree holds tensors that the
  // published format has no place for (an adapter).
  //
  // Each file appears whole or not at all, config.json last. If the folder holds an older model in shards, the save as
  // a whole is not atomic: the old config.json is removed first, so that an incomplete folder is never taken for
  // complete. An adapter in the folder is not removed, and from_pretrained() would apply it. Two files that were beside
  // the original config.json are written, too, unless the folder has them: the preprocessor_config.json of a model that
  // reads images (image_processor.h), and the generation_config.json of a model that writes texts about images.
  void save_pretrained(const std::string& folder, const SaveOptions& options = {}) const;
  // Returns the name that published files give to a tensor of the module: "h.0.ln_1.weight" ->
  // "transformer.h.0.ln_1.weight".
  std::string published_name(std::string_view name) const;

  PretrainedModel(PretrainedModel&&) noexcept;
  PretrainedModel& operator=(PretrainedModel&&) noexcept;
  ~PretrainedModel();

 protected:
  enum class Kind {
    kBase,
    kCausalLM,
    kSequenceClassification,
    kTokenClassification,
    kMaskedLM,
    kImageClassification,
    kSegmentation,
    kImageTextToText
  };
  PretrainedModel(Kind kind, const std::string& folder, const PretrainedOptions& options);
  const Family* family_ = nullptr;

 private:
  std::unique_ptr<ModuleBase> module_;
  std::unique_ptr<const Published> published_;
  std::vector<ConfigField> config_;                          // the fields of the original config.json
  std::vector<std::pair<const char*, std::string>> beside_;  // names and texts of the two files beside config.json
  std::string model_type_;
  std::vector<std::string> label_names_;
};

// The model below the heads.
class AutoModel : public PretrainedModel {
 public:
  static AutoModel from_pretrained(const std::string& folder, const PretrainedOptions& options = {});
  // idx i64 (B, T) -> features (B, T, C). mask bool (B, T), true = a real token, and segments i64 (B, T) are for BERT
  // (DistilBERT has no segments): Error if another family gets one. AutoModel does not load ViT and SegFormer.
  Tensor operator()(TensorArg idx, const Tensor& mask = {}, const Tensor& segments = {});

 private:
  using PretrainedModel::PretrainedModel;
};

// Language models: GPT-2, Llama, Qwen, Mistral.
class AutoModelForCausalLM : public PretrainedModel {
 public:
  static AutoModelForCausalLM from_pretrained(const std::string& folder, const PretrainedOptions& options = {});
  // i64 (B, T) -> logits (B, T, V). positions i64 (B, T): for rows of several sequences (GPT2::forward).
  Tensor operator()(TensorArg idx, const Tensor& positions = {});
  CausalLM& causal_lm() const;  // for generate() (generation.h)
  int64_t vocab_size() const;   // ids of tokens are below this
  int64_t max_length() const;   // positions: the longest sequence
  // Returns the mean cross-entropy in nats of targets i64 (B, T), where -100 is ignored. targets[b][t] is what follows
  // idx[b][t]: nothing is shifted here.
  Tensor loss(const Tensor& idx, const Tensor& targets, std::source_location where = std::source_location::current());
  Tensor loss(const Tensor& idx, const Tensor& targets, const Tensor& positions,
              std::source_location where = std::source_location::current());

 private:
  using PretrainedModel::PretrainedModel;
};

// Classifiers of sequences. BERT, RoBERTa and DistilBERT: shapes as in bert_tasks.h. Llama, Qwen and Mistral:
// llama_tasks.h. Throws Error if a model without segments gets some. Targets as in classification_loss.h.
class AutoModelForSequenceClassification : public PretrainedModel {
 public:
  static AutoModelForSequenceClassification from_pretrained(const std::string& folder,
                                                            const PretrainedOptions& options = {});
  TextClassifierFacts facts() const;
  Tensor operator()(TensorArg idx, const Tensor& mask = {}, const Tensor& segments = {});  // (B, num_classes)
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  using PretrainedModel::PretrainedModel;
};

// Classifiers of tokens: BERT, RoBERTa and DistilBERT.
class AutoModelForTokenClassification : public PretrainedModel {
 public:
  static AutoModelForTokenClassification from_pretrained(const std::string& folder,
                                                         const PretrainedOptions& options = {});
  Tensor operator()(TensorArg idx, const Tensor& mask = {}, const Tensor& segments = {});  // (B, T, num_classes)
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  using PretrainedModel::PretrainedModel;
};

// Masked language models: BERT, RoBERTa and DistilBERT. The files of BERT's and RoBERTa's pretraining hold more than
// this model: set PretrainedOptions::ignore to {"bert.pooler.", "cls.seq_relationship."} or {"roberta.pooler."}.
class AutoModelForMaskedLM : public PretrainedModel {
 public:
  static AutoModelForMaskedLM from_pretrained(const std::string& folder, const PretrainedOptions& options = {});
  Tensor operator()(TensorArg idx, const Tensor& mask = {}, const Tensor& segments = {});  // (B, T, V)
  // Returns the mean cross-entropy in nats of targets i64 (B, T): the tokens that were masked, and -100 (ignored) at
  // all other positions.
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  using PretrainedModel::PretrainedModel;
};

// Image classifiers: ViT.
class AutoModelForImageClassification : public PretrainedModel {
 public:
  static AutoModelForImageClassification from_pretrained(const std::string& folder,
                                                         const PretrainedOptions& options = {});
  Tensor operator()(TensorArg images);  // (B, channels, image_size, image_size) -> (B, num_classes)
  // Targets as in classification_loss.h.
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  using PretrainedModel::PretrainedModel;
};

// Models that classify each pixel of an image: SegFormer.
class AutoModelForSemanticSegmentation : public PretrainedModel {
 public:
  static AutoModelForSemanticSegmentation from_pretrained(const std::string& folder,
                                                          const PretrainedOptions& options = {});
  Tensor operator()(TensorArg images);  // (B, channels, H, W) -> (B, num_classes, H / 4, W / 4), rounded up
  // Returns segmentation_loss() for targets i64 or i32 (B, H, W). The class semantic_loss_ignore_index of config.json
  // (255) is ignored.
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  using PretrainedModel::PretrainedModel;
};

// ViT with GPT-2: texts about images, which nn::VisionEncoderDecoder::generate() writes.
class AutoModelForImageTextToText : public PretrainedModel {
 public:
  static AutoModelForImageTextToText from_pretrained(const std::string& folder, const PretrainedOptions& options = {});
  // Shapes as in vision_encoder_decoder.h.
  Tensor operator()(TensorArg images, const Tensor& idx, const Tensor& mask = {});
  Tensor loss(const Tensor& images, const Tensor& labels, std::source_location where = std::source_location::current());
  VisionEncoderDecoder& vision_encoder_decoder() const;

 private:
  using PretrainedModel::PretrainedModel;
};

// As PretrainedModel::save_pretrained(), for a model that was not read from files: GPT2, Llama, Llama::Body,
// LlamaForSequenceClassification, BertModel, BertForSequenceClassification, RobertaForSequenceClassification,
// BertForTokenClassification, BertForMaskedLM, ViT, SegformerForSemanticSegmentation, or VisionEncoderDecoder, which
// also gets a generation_config.json. Throws Error for any other.
void save_pretrained(ModuleBase& model, const std::string& folder, const SaveOptions& options = {});

}  // namespace rondo::nn
#pragma GCC visibility pop
