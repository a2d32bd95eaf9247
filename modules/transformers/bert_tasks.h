// BERT, RoBERTa (Liu et al., "RoBERTa: a robustly optimized BERT pretraining approach", 2019) and DistilBERT as they
// are published: a body called "bert", "roberta" or "distilbert" below a head for one task. Parameter names are those
// of published checkpoints, but for DistilBERT's layers and the heads of masked language models: bert_names.h.
//
//   nn::BertForSequenceClassification model({.vocab_size = 30522, .n_layer = 2, .num_classes = 3});
//   model.loss(idx, mask, segments, targets).backward();
//
// Shapes: idx i64 (B, T); mask bool (B, T), true = a real token, undefined = all; segments i64 (B, T), undefined = 0.
// Weights start N(0, 0.02), biases 0, gains 1; the same for the same seed on any machine.
#pragma once

#include "rondo/modules/transformers/bert.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Embeddings and encoder: every position's features.
struct BertModel : Module<BertModel> {
  explicit BertModel(BertConfig config, bool has_pooler = true, uint64_t seed = 0, const SkipInit& skip = SkipInit());
  BertConfig config;
  BertEmbeddings embeddings = child("embeddings", config);
  BertEncoder encoder = child("encoder", config);
  std::unique_ptr<BertDense> pooler;                                                        // null without has_pooler
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});  // (B, T, C)
  // Applies the pooler, a linear layer and tanh (in DistilBERT relu), to the first position's features: (B, C). Throws
  // Error without a pooler.
  Tensor pooled(const Tensor& features);
};

// Returns the mean of the features of real tokens, as sentence-transformers' models (MiniLM) pool: features (B, T, C),
// mask bool (B, T) or undefined -> (B, C). A row without a real token gives 0.
Tensor mean_pooling(const Tensor& features, const Tensor& mask);

// Returns the name of the body: "bert", "roberta" or "distilbert".
inline const char* bert_body_name(const BertConfig& config) {
  return config.roberta ? "roberta" : config.distilbert ? "distilbert" : "bert";
}

struct BertTaskOptions {
  std::optional<double> classifier_dropout = std::nullopt;  // nullopt: config.dropout
  uint64_t seed = 0;
};

// A classifier of sequences: logits (B, num_classes) from the pooled first position. DistilBERT's pooler is published
// under the name "pre_classifier".
struct BertForSequenceClassification : Module<BertForSequenceClassification> {
  explicit BertForSequenceClassification(BertConfig config, BertTaskOptions options = {},
                                         const SkipInit& skip = SkipInit());
  BertConfig config;
  BertTaskOptions options;
  BertModel bert = child(config.distilbert ? "distilbert" : "bert", config);
  Dropout dropout = child("dropout", options.classifier_dropout.value_or(config.dropout));
  Linear classifier = child("classifier", config.n_embd, config.num_classes);
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  // Returns the mean loss of the targets; config.problem_type chooses the loss (classification_loss.h).
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

// out_proj(tanh(dense(first position))), with dropout before each.
struct RobertaClassificationHead : Module<RobertaClassificationHead> {
  RobertaClassificationHead(const BertConfig& config, double dropout);
  Linear dense;
  Dropout dropout;
  Linear out_proj;
  Tensor forward(const Tensor& features);  // (B, T, C) -> (B, num_classes)
};

// As BertForSequenceClassification, for RoBERTa, which has no pooler.
struct RobertaForSequenceClassification : Module<RobertaForSequenceClassification> {
  explicit RobertaForSequenceClassification(BertConfig config, BertTaskOptions options = {},
                                            const SkipInit& skip = SkipInit());
  BertConfig config;
  BertTaskOptions options;
  BertModel roberta = child("roberta", config, /*has_pooler=*/false);
  RobertaClassificationHead classifier = child("classifier", config,
                                               options.classifier_dropout.value_or(config.dropout));
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

// A classifier of tokens: logits (B, T, num_classes) of every position. The body is called bert_body_name(config).
struct BertForTokenClassification : Module<BertForTokenClassification> {
  explicit BertForTokenClassification(BertConfig config, BertTaskOptions options = {},
                                      const SkipInit& skip = SkipInit());
  BertConfig config;
  BertTaskOptions options;
  BertModel bert = child(bert_body_name(config), config, /*has_pooler=*/false);
  Dropout dropout = child("dropout", options.classifier_dropout.value_or(config.dropout));
  Linear classifier = child("classifier", config.n_embd, config.num_classes);
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  // Returns the mean cross-entropy in nats of targets i64 (B, T), where -100 is ignored.
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

// decoder(transformed(features)), where the decoder's weight is that of the word embeddings.
struct BertMaskedHead : Module<BertMaskedHead> {
  explicit BertMaskedHead(const BertConfig& config);
  ops::GeluKind gelu;
  Linear dense;
  LayerNorm layer_norm;
  Linear decoder;
  Tensor transformed(const Tensor& features) { return layer_norm(ops::gelu(dense(features), gelu)); }  // (..., C)
  Tensor forward(const Tensor& features) { return decoder(transformed(features)); }  // (..., C) -> (..., V)
};

// A masked language model: logits (B, T, vocab_size) of every position. The body is called bert_body_name(config).
struct BertForMaskedLM : Module<BertForMaskedLM> {
  explicit BertForMaskedLM(BertConfig config, uint64_t seed = 0, const SkipInit& skip = SkipInit());
  BertConfig config;
  BertModel bert = child(bert_body_name(config), config, /*has_pooler=*/false);
  BertMaskedHead head = child("head", config);
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  // Returns the mean cross-entropy in nats of targets i64 (B, T): the tokens that were masked, and -100, which is
  // ignored, at all other positions.
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

}  // namespace rondo::nn
#pragma GCC visibility pop
