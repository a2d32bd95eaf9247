// For evaluation: folds each batch norm that follows a convolution into the convolution's weight and bias, so that the
// norm costs nothing.
//
//   model.eval();
//   nn::fold_batch_norm(model, [&] { return model(example); });
//
// Which norms follow which convolutions is not read from names. The example is run, and a pair is folded if the result
// of the convolution is read by the norm and by nothing else. A norm that was folded is replaced by an Identity, so the
// model cannot be trained as before, and its state has the folded weights.
#pragma once

#include "absl/functional/function_ref.h"
#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct Identity : Module<Identity> {
  Tensor forward(const Tensor& x) { return x; }
};

// Returns how many norms were folded: only norms that use running statistics, after convolutions that are called once.
// `run` calls the model and returns its result, which must be finite; it is called several times. Throws Error unless
// the model is in evaluation mode.
int64_t fold_batch_norm(ModuleBase& model, absl::FunctionRef<Tensor()> run);

}  // namespace rondo::nn
#pragma GCC visibility pop
