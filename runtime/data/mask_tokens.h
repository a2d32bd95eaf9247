// mask_tokens: what a masked language model learns from (Devlin et al., "BERT: pre-training of deep bidirectional
// transformers", 2019). Some tokens are chosen, most of them are hidden, and the model says what they were.
//
//   // A DataLoader gives `random`: other tokens in each epoch, and the same ones after a resume.
//   std::vector<Tensor> get(int64_t i, Generator& random) const override {
//     const auto [ids, targets] = data::mask_tokens(texts[i], real[i], {.mask_id = 103, .vocab_size = 30522}, random);
//     return {ids, real[i], targets};
//   }
//   ... model.loss((*batch)[0], (*batch)[1], {}, (*batch)[2])      // BertForMaskedLM
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::data {

struct MaskTokensOptions {
  int64_t mask_id = 0;                    // the token that hides others: "[MASK]"
  int64_t vocab_size = 0;                 // random tokens are below this
  double probability = 0.15;              // of each token to be chosen
  double hidden = 0.8, random = 0.1;      // shares of the chosen ones: mask_id, any token; the others stay as they are
  std::vector<int64_t> special_ids = {};  // never chosen: "[CLS]", "[SEP]"
};

struct MaskedTokens {
  Tensor ids;      // i64: what the model sees
  Tensor targets;  // i64: the token where one was chosen, -100 elsewhere
};
// ids: i64 or i32 of any shape. mask: bool of that shape, true = a real token; undefined: all are. Padding is never
// chosen. The results are in host memory, and a function of the operands and of the generator, which gives three
// tensors. Throws Error for other operands, for shares that are no probabilities, or that exceed 1 together, and for a
// mask_id outside of the vocabulary.
MaskedTokens mask_tokens(const Tensor& ids, const Tensor& mask, const MaskTokensOptions& options, Generator& random);

}  // namespace rondo::data
#pragma GCC visibility pop
