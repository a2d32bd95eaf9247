#include "rondo/modules/transformers/bert.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {

BertEmbeddings::BertEmbeddings(const BertConfig& config)
    : roberta(config.roberta),
      word_embeddings(child("word_embeddings", config.vocab_size, config.n_embd,
                            EmbeddingOptions{.padding_idx = config.padding_idx})),
      position_embeddings(child("position_embeddings", config.block_size, config.n_embd,
                                EmbeddingOptions{.padding_idx = config.roberta ? config.padding_idx : std::nullopt})),
      token_type_embeddings(config.distilbert
                                ? std::unique_ptr<Embedding>()
                                : child("token_type_embeddings", config.n_segment, config.n_embd).make<Embedding>()),
      layer_norm(child("LayerNorm", config.n_embd, LayerNormOptions{.eps = config.norm_eps})),
      dropout(child("dropout", config.dropout)) {
  if (roberta && !config.padding_idx) throw Error("Bert: RoBERTa's positions need a padding_idx");
  ignore_in_state_dict("position_ids");
}
Tensor BertEmbeddings::forward(const Tensor& idx, const Tensor& segments) {
  Tensor positions;
  if (roberta) {
    const int64_t padding = *position_embeddings.options.padding_idx;
    const Tensor real = ops::not_equal(idx, padding).to(kI64);
    positions = ops::cumsum(real, 1) * real + padding;
  } else {
    positions = Tensor::arange(idx.size(1), {kI64, idx.device()});
  }
  const Tensor x = word_embeddings(idx) + position_embeddings(positions);
  return dropout(layer_norm(token_type_embeddings == nullptr ? x : x + (*token_type_embeddings)(segments)));
}

BertSelfAttention::BertSelfAttention(const BertConfig& config)
    : n_head(config.n_head),
      query(child("query", config.n_embd, config.n_embd)),
      key(child("key", config.n_embd, config.n_embd)),
      value(child("value", config.n_embd, config.n_embd)),
      dropout(child("dropout", config.attention_dropout)) {
  if (n_head <= 0 || config.n_embd % n_head != 0)
    throw Error(absl::StrCat("Bert: n_head must divide n_embd, got ", n_head, " and ", config.n_embd));
}
Tensor BertSelfAttention::forward(const Tensor& x, const Tensor& mask) {
  const int64_t B = x.size(0), T = x.size(1), C = x.size(2);
  const auto heads = [&](const Tensor& t) {
    return t.view({B, T, n_head, C / n_head}).transpose(1, 2);
  };  // (B, H, T, D)
  const Tensor y = ops::scaled_dot_product_attention(heads(query(x)), heads(key(x)), heads(value(x)), mask,
                                                     {.dropout = dropout.rate()});
  return y.transpose(1, 2).reshape({B, T, C});
}

BertOutput::BertOutput(int64_t n_in, const BertConfig& config, double dropout)
    : dense(child("dense", n_in, config.n_embd)),
      layer_norm(child("LayerNorm", config.n_embd, LayerNormOptions{.eps = config.norm_eps})),
      dropout(child("dropout", dropout)) {}
Tensor BertOutput::forward(const Tensor& x, const Tensor& residual) { return layer_norm(residual + dropout(dense(x))); }

BertAttention::BertAttention(const BertConfig& config)
    : self(child("self", config)),
      output(child("output", config.n_embd, config, config.distilbert ? 0.0 : config.dropout)) {}

BertDense::BertDense(int64_t n_in, int64_t n_out) : dense(child("dense", n_in, n_out)) {}

BertLayer::BertLayer(const BertConfig& config)
    : gelu(config.gelu),
      attention(child("attention", config)),
      intermediate(child("intermediate", config.n_embd, config.n_hidden)),
      output(child("output", config.n_hidden, config, config.dropout)) {}
Tensor BertLayer::forward(const Tensor& x, const Tensor& mask) {
  const Tensor y = attention(x, mask);
  return output(ops::gelu(intermediate(y), gelu), y);
}

BertEncoder::BertEncoder(const BertConfig& config) : layer(child("layer", config.n_layer, config)) {}
Tensor BertEncoder::forward(const Tensor& x_, const Tensor& mask) {
  Tensor x = x_;
  for (BertLayer& block : layer) x = block(x, mask);
  return x;
}

Bert::Bert(BertConfig config, uint64_t seed, const SkipInit&) : config(config) {
  init_normal(*this, seed);
  embeddings.word_embeddings.zero_padding();
}

Tensor bert_features(const BertConfig& config, BertEmbeddings& embeddings, BertEncoder& encoder, const Tensor& idx,
                     const Tensor& mask, const Tensor& segments) {
  const auto fail = [&](std::string_view what, const Tensor& t) {
    throw_op_error("Bert",
                   absl::StrCat(std::string(what), ", got ", std::string(name_of(t.dtype())), to_string(t.sizes())),
                   std::source_location::current());
  };
  if (idx.rank() != 2 || !is_index(idx.dtype()) || idx.size(1) == 0)
    fail("idx must be i64 or i32 (B, T) with T > 0", idx);
  if (idx.size(1) > config.max_length())
    fail(absl::StrCat("T must be at most ",
                      config.roberta ? "block_size - padding_idx - 1 = " : "block_size = ", config.max_length()),
         idx);
  if (mask.defined() && (mask.dtype() != kBool || !(mask.sizes() == idx.sizes())))
    fail("mask must be bool (B, T)", mask);
  if (config.distilbert && segments.defined()) fail("DistilBERT takes no segments", segments);
  const Tensor kinds = segments.defined() || config.distilbert ? segments
                                                               : Tensor::zeros(idx.sizes(), {kI64, idx.device()});
  if (kinds.defined() && !(kinds.sizes() == idx.sizes())) fail("segments must be i64 or i32 (B, T)", kinds);
  const Tensor allowed = mask.defined() ? mask.view({idx.size(0), 1, 1, idx.size(1)}) : Tensor();
  return encoder(embeddings(idx, kinds), allowed);
}

Tensor Bert::features(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  return bert_features(config, embeddings, encoder, idx, mask, segments);
}

Tensor Bert::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  const Tensor first = features(idx, mask, segments).select(1, 0);  // (B, C)
  return classifier(ops::tanh(pooler(first)));
}

Tensor Bert::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
                  std::source_location where) {
  return classification_loss({(*this)({idx, where}, mask, segments), where}, targets, config.problem_type);
}

}  // namespace rondo::nn
