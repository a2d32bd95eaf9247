#include "rondo/modules/transformers/llama_tasks.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {

LlamaForSequenceClassification::LlamaForSequenceClassification(LlamaConfig config, LlamaTaskOptions options,
                                                               const SkipInit&)
    : config(config), options(options) {
  init_normal(*this, options.seed);
  model.embed_tokens.zero_padding();
}

Tensor LlamaForSequenceClassification::forward(const Tensor& idx, const Tensor& mask, const Tensor& segments) {
  const auto fail = [&](const std::string& what) {
    throw_op_error("LlamaForSequenceClassification", what, std::source_location::current());
  };
  if (segments.defined()) fail("this model takes no segments");
  const Tensor x = model(idx, Tensor(), mask);  // (B, T, C)
  const int64_t B = x.size(0), T = x.size(1), C = x.size(2);
  if (T == 0) fail("T must be positive");
  if (!config.padding_idx && B != 1)
    fail(absl::StrCat("idx has ", B,
                      " rows, and the model has no padding_idx, so that their ends cannot be told from padding; set "
                      "LlamaConfig::padding_idx or PretrainedOptions::pad_token_id"));
  if (!config.padding_idx) return score(x.select(1, T - 1));
  const Tensor at = Tensor::arange(T, {kI64, idx.device()}), rows = Tensor::arange(B, {kI64, idx.device()});
  const Tensor last = ops::argmax(ops::not_equal(idx, *config.padding_idx).to(kI64) * at, 1);  // (B)
  return score(ops::index_select(x.reshape({B * T, C}), 0, rows * T + last));
}

Tensor LlamaForSequenceClassification::loss(const Tensor& idx, const Tensor& mask, const Tensor& segments,
                                            const Tensor& targets, std::source_location where) {
  return classification_loss({(*this)({idx, where}, mask, segments), where}, targets, options.problem_type);
}

}  // namespace rondo::nn
