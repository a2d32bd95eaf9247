#include "rondo/modules/transformers/bert_tasks.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {
namespace {

void start(ModuleBase& module, BertEmbeddings& embeddings, uint64_t seed) {
  init_normal(module, seed);
  embeddings.word_embeddings.zero_padding();
  embeddings.position_embeddings.zero_padding();
}

BertConfig as_roberta(BertConfig config) {
  if (!config.roberta) throw Error("RobertaForSequenceClassification: set BertConfig::roberta");
  return config;
}

}  // namespace

BertModel::BertModel(BertConfig config, bool has_pooler, uint64_t seed, const SkipInit&) : config(config) {
  if (has_pooler) pooler = child("pooler", config.n_embd, config.n_embd).make<BertDense>();
  if (parent() == nullptr) start(*this, embeddings, seed);  // a task model initialises its own weights
}
Tensor BertModel::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  return bert_features(config, embeddings, encoder, idx, mask, segments);
}
Tensor BertModel::pooled(const Tensor& features) {
  if (pooler == nullptr) throw Error("BertModel::pooled: this model has no pooler");
  const Tensor first = (*pooler)(features.select(1, 0));
  return config.distilbert ? ops::relu(first) : ops::tanh(first);
}

Tensor mean_pooling(const Tensor& features, const Tensor& mask) {
  if (features.rank() != 3)
    throw Error(absl::StrCat("mean_pooling: features must be (B, T, C), got ", to_string(features.sizes())));
  if (!mask.defined()) return features.mean(1);
  const int64_t B = features.size(0), T = features.size(1);
  if (mask.dtype() != kBool || !(mask.sizes() == Dims{B, T}))
    throw Error(absl::StrCat("mean_pooling: mask must be bool (B, T), got ", std::string(name_of(mask.dtype())),
                             to_string(mask.sizes())));
  const Tensor weights = mask.to(features.dtype()).unsqueeze(-1);  // (B, T, 1)
  return (features * weights).sum(1) / ops::maximum(weights.sum(1), 1e-9);
}

BertForSequenceClassification::BertForSequenceClassification(BertConfig config, BertTaskOptions options,
                                                             const SkipInit&)
    : config(config), options(options) {
  start(*this, bert.embeddings, options.seed);
}
Tensor BertForSequenceClassification::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  return classifier(dropout(bert.pooled(bert(idx, mask, segments))));
}
Tensor BertForSequenceClassification::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments,
                                           const Tensor& targets, std::source_location where) {
  return classification_loss({(*this)({idx, where}, mask, segments), where}, targets, config.problem_type);
}

RobertaClassificationHead::RobertaClassificationHead(const BertConfig& config, double dropout)
    : dense(child("dense", config.n_embd, config.n_embd)),
      dropout(child("dropout", dropout)),
      out_proj(child("out_proj", config.n_embd, config.num_classes)) {}
Tensor RobertaClassificationHead::forward(const Tensor& features) {
  return out_proj(dropout(ops::tanh(dense(dropout(features.select(1, 0))))));
}

RobertaForSequenceClassification::RobertaForSequenceClassification(BertConfig config, BertTaskOptions options,
                                                                   const SkipInit&)
    : config(as_roberta(config)), options(options) {
  start(*this, roberta.embeddings, options.seed);
}
Tensor RobertaForSequenceClassification::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  return classifier(roberta(idx, mask, segments));
}
Tensor RobertaForSequenceClassification::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments,
                                              const Tensor& targets, std::source_location where) {
  return classification_loss({(*this)({idx, where}, mask, segments), where}, targets, config.problem_type);
}

BertForTokenClassification::BertForTokenClassification(BertConfig config, BertTaskOptions options, const SkipInit&)
    : config(config), options(options) {
  start(*this, bert.embeddings, options.seed);
}
Tensor BertForTokenClassification::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  return classifier(dropout(bert(idx, mask, segments)));
}
Tensor BertForTokenClassification::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments,
                                        const Tensor& targets, std::source_location where) {
  const Tensor logits = (*this)({idx, where}, mask, segments);
  if (!(targets.sizes(where) == idx.sizes()))
    throw_op_error(
        "BertForTokenClassification::loss",
        absl::StrCat("targets must have idx's shape ", to_string(idx.sizes()), ", got ", to_string(targets.sizes())),
        where);
  const int64_t n = idx.numel();
  return ops::cross_entropy({logits.view({n, config.num_classes}), where}, {targets.reshape({n}), where});
}

BertMaskedHead::BertMaskedHead(const BertConfig& config)
    : gelu(config.roberta ? ops::GeluKind::kErf : config.gelu),  // RoBERTa's head always has this one
      dense(child("dense", config.n_embd, config.n_embd)),
      layer_norm(child("layer_norm", config.n_embd, LayerNormOptions{.eps = config.norm_eps})),
      decoder(child("decoder", config.n_embd, config.vocab_size)) {}

BertForMaskedLM::BertForMaskedLM(BertConfig config, uint64_t seed, const SkipInit&) : config(config) {
  head.decoder.weight = bert.embeddings.word_embeddings.weight;
  start(*this, bert.embeddings, seed);
}
Tensor BertForMaskedLM::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  return head(bert(idx, mask, segments));
}
Tensor BertForMaskedLM::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
                             std::source_location where) {
  const auto logits = [&] { return (*this)({idx, where}, mask, segments); };
  const auto below = [&] { return head.transformed(bert(idx, mask, segments)); };
  // A hook on the head or on its output layer runs only if their forward is called, and forward makes all logits at
  // once.
  const bool plain = head.is_plain() && head.decoder.is_plain();
  const int64_t whole = plain ? config.whole_logits : std::numeric_limits<int64_t>::max();
  return NextTokenLoss{*this, head.decoder.weight, whole, logits, below, head.decoder.bias}(idx, targets, where);
}

}  // namespace rondo::nn
