// The backward graph of a forward graph: the VJPs of its ops, run on symbolic tensors in reverse order of recording, so
// that gradients meet in the same order as on the eager tape.
#pragma once

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// What a backward graph's input is bound to.
struct BackwardInput {
  enum Kind { kGradient, kSaved, kConstant } kind;
  int32_t index = -1;  // kGradient: index into forward.outputs; kSaved: a forward ValueId
  Tensor constant;     // kConstant: a tensor that a gradient rule made (zeros for an unused piece of a split)
};

struct BackwardGraph {
  Graph graph;
  std::vector<BackwardInput> inputs;  // parallel to graph.inputs
  std::vector<int> grad_inputs;       // graph.outputs are the gradients of these forward inputs (indices into forward.inputs)
};

BackwardGraph derive_backward(const Graph& forward);

}  // namespace rondo::compile
