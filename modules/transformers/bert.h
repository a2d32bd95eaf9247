// BERT (Devlin et al., "BERT: pre-training of deep bidirectional transformers", 2019) with a classifier on its pooler.
//
//   nn::Bert model({.vocab_size = 30522, .n_layer = 2, .num_classes = 3}, /*seed=*/1337);
//   model.loss(idx, mask, segments, targets).backward();
//
// Parameter names are those of published checkpoints without their "bert."; their `embeddings.position_ids` is ignored.
// The published models with their own names, RoBERTa among them, are in bert_tasks.h.
#pragma once

#include "rondo/modules/layers/classification_loss.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/layers/next_token_loss.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are BERT base.
struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t block_size = 512;
  int64_t n_segment = 2;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_embd = 768;
  int64_t n_hidden = 3072;
  int64_t num_classes = 2;
  std::optional<ProblemType> problem_type = std::nullopt;  // the loss of a classifier of sequences
  double dropout = 0;                                      // of the embeddings and of each half of a layer
  double norm_eps = 1e-12;
  std::optional<int64_t> padding_idx = 0;  // the word embedding of this token gets no gradient, as in published models
  double attention_dropout = 0;            // of the attention weights
  ops::GeluKind gelu = ops::GeluKind::kErf;
  // RoBERTa (Liu et al., 2019): tokens that are not padding_idx have the positions padding_idx + 1, padding_idx + 2,
  // ... of the block_size position embeddings; padding has position padding_idx, which is frozen too.
  bool roberta = false;
  // DistilBERT (Sanh et al., "DistilBERT, a distilled version of BERT", 2019), in the models of bert_tasks.h: no
  // segments, no dropout of the result of attention, and ReLU after the pooler.
  bool distilbert = false;
  // If there are more logits than this, loss() of a masked language model computes them in chunks.
  int64_t whole_logits = kWholeLogits;

  // Returns the length of the longest sequence.
  int64_t max_length() const { return roberta ? block_size - padding_idx.value_or(0) - 1 : block_size; }
};

// The sum of word, position and segment embeddings, normalised. For DistilBERT, which has no segments, `segments` is
// undefined.
struct BertEmbeddings : Module<BertEmbeddings> {
  explicit BertEmbeddings(const BertConfig& config);
  bool roberta;
  Embedding word_embeddings;
  Embedding position_embeddings;
  std::unique_ptr<Embedding> token_type_embeddings;  // null in DistilBERT
  LayerNorm layer_norm;                              // "LayerNorm"
  Dropout dropout;
  Tensor forward(const Tensor& idx, const Tensor& segments);  // i64 (B, T) each -> (B, T, C)
};

struct BertSelfAttention : Module<BertSelfAttention> {
  explicit BertSelfAttention(const BertConfig& config);
  int64_t n_head;
  Linear query;
  Linear key;
  Linear value;
  Dropout dropout;
  Tensor forward(const Tensor& x, const Tensor& mask);  // (B, T, C), (B, 1, 1, T) -> (B, T, C)
};

// Post-norm: LayerNorm(residual + dropout(dense(x))).
struct BertOutput : Module<BertOutput> {
  BertOutput(int64_t n_in, const BertConfig& config, double dropout);
  Linear dense;
  LayerNorm layer_norm;  // "LayerNorm"
  Dropout dropout;
  Tensor forward(const Tensor& x, const Tensor& residual);
};

struct BertAttention : Module<BertAttention> {
  explicit BertAttention(const BertConfig& config);
  BertSelfAttention self;
  BertOutput output;
  Tensor forward(const Tensor& x, const Tensor& mask) { return output(self(x, mask), x); }
};

// A linear layer below a module of its own: its parameters are named "....dense.weight", as in published checkpoints.
struct BertDense : Module<BertDense> {
  BertDense(int64_t n_in, int64_t n_out);
  Linear dense;
  Tensor forward(const Tensor& x) { return dense(x); }
};

struct BertLayer : Module<BertLayer> {
  explicit BertLayer(const BertConfig& config);
  ops::GeluKind gelu;
  BertAttention attention;
  BertDense intermediate;
  BertOutput output;
  Tensor forward(const Tensor& x, const Tensor& mask);  // (B, T, C), (B, 1, 1, T) or undefined -> (B, T, C)
};

struct BertEncoder : Module<BertEncoder> {
  explicit BertEncoder(const BertConfig& config);
  ModuleList<BertLayer> layer;
  Tensor forward(const Tensor& x, const Tensor& mask);
};

// Returns the features (B, T, C) of idx i64 (B, T). mask bool (B, T), true = a real token, undefined = all; segments
// i64 (B, T), undefined = 0. Throws Error for other shapes, for T > config.max_length() and for segments of DistilBERT.
Tensor bert_features(const BertConfig& config, BertEmbeddings& embeddings, BertEncoder& encoder, const Tensor& idx,
                     const Tensor& mask, const Tensor& segments);

struct Bert : Module<Bert> {
  // Weights start N(0, 0.02), biases 0, gains 1; the same for the same seed on any machine.
  explicit Bert(BertConfig config, uint64_t seed = 0, const SkipInit& skip = SkipInit());

  BertConfig config;
  BertEmbeddings embeddings = child("embeddings", config);
  BertEncoder encoder = child("encoder", config);
  BertDense pooler = child("pooler", config.n_embd, config.n_embd);
  Linear classifier = child("classifier", config.n_embd, config.num_classes);

  // idx i64 (B, T); mask bool (B, T), true = a real token, undefined = all; segments i64 (B, T), undefined = 0
  // -> logits (B, num_classes).
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  // Returns every position's features: (B, T, C).
  Tensor features(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  // Returns the mean loss of the targets; config.problem_type chooses the loss (classification_loss.h).
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

}  // namespace rondo::nn
#pragma GCC visibility pop
