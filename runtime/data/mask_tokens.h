// mask_tokens: inputs and targets of a masked language model (Devlin et al., "BERT: pre-training of deep bidirectional
// transformers", 2019). Random tokens are chosen, most of them are hidden, and the model predicts the chosen ones.
//
//   // A DataLoader passes `random`: the choice differs in each epoch, and is the same after a resume.
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
  double probability = 0.15;              // the probability that a token is chosen
  double hidden = 0.8, random = 0.1;      // shares of chosen tokens that become mask_id or a random token; others stay
  std::vector<int64_t> special_ids = {};  // never chosen: "[CLS]", "[SEP]"
};

struct MaskedTokens {
  Tensor ids;      // i64: the input of the model
  Tensor targets;  // i64: the original token at chosen positions, -100 elsewhere
};
// Chooses tokens, hides them and returns what the model has to predict. ids: i64 or i32 of any shape. mask: bool of
// that shape, true for real tokens, false for padding, which is never chosen; undefined: all tokens are real. The
// results are in host memory and depend only on the operands and the generator, from which three tensors are drawn.
// Throws Error for other operands, for shares that are not probabilities or sum to more than 1, and for a mask_id
// outside of the vocabulary.
MaskedTokens mask_tokens(const Tensor& ids, const Tensor& mask, const MaskTokensOptions& options, Generator& random);

}  // namespace rondo::data
#pragma GCC visibility pop
