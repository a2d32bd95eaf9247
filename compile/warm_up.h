// Compiles everything that the expected sizes need, before the first step.
//
//   compile::mark_dynamic(tokens, 1, {.max = 256, .buckets = 8});
//   compile::mark_dynamic(targets, 1, {.max = 256, .buckets = 8});
//   compile::warm_up(model, {tokens, targets}, [&](std::span<const Tensor> batch) {
//     model.loss(batch[0], batch[1]).backward();
//   });
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "rondo/compile/options.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

struct WarmUp {
  int64_t steps = 0;    // combinations of sizes that ran
  int64_t kernels = 0;  // kernels compiled for them, because no cache had them
  double ms = 0;
};

// Runs `step` once for each bucket of the inputs' varying dimensions, the largest first, on inputs of the bucket's
// largest size: the inputs' elements, repeated or cut off. `dynamic`: the varying dimensions of the inputs; empty: the
// marked dimensions. Dimensions of equal size and equal range vary together, other dimensions vary in all combinations.
// A dimension without an upper bound keeps its size.
//
// Each step begins without gradients: to accumulate several batches, do so within `step`. Afterwards the model is as it
// was: gradients, buffers, random numbers. Throws Error if the step changes a parameter, which an optimizer's step
// does; if `dynamic` does not fit the inputs or is invalid; if there are more than 1,024 combinations; and what the
// step throws. No other thread may use the model meanwhile.
WarmUp warm_up(nn::ModuleBase& model, const std::vector<Tensor>& inputs,
               const std::function<void(std::span<const Tensor>)>& step,
               const std::vector<DynamicArgument>& dynamic = {},
               std::source_location where = std::source_location::current());

}  // namespace rondo::compile
#pragma GCC visibility pop
