// Derives the backward graph of a forward graph: runs the gradient rules (VJPs) of its ops on symbolic tensors, in
// reverse order of recording. So gradients are added up in the same order as on the eager tape.
#pragma once

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// The source of a backward graph's input.
struct BackwardInput {
  enum Kind { kGradient, kTotal, kSaved, kConstant } kind;
  // kGradient: index into forward.outputs; kTotal: the sum so far of a forward input's gradient, index into
  // forward.inputs; kSaved: a forward ValueId
  int32_t index = -1;
  Tensor constant;  // kConstant: a tensor that a gradient rule made (zeros for an unused piece of a split)
  // kSaved: if the recording overwrites the value, the first call whose gradient reads it; a backward that reads it
  // throws StaleTensorError. Otherwise -1.
  int32_t stale_for = -1;
  bool is_stale() const { return stale_for >= 0; }
};

// A backward's share in the gradient of one forward input.
struct Contribution {
  int32_t parts = 0;       // how many contributions it adds up
  bool adds_onto = false;  // an op adds to the gradient so far (OpDef::grad_adds)
  friend bool operator==(const Contribution&, const Contribution&) = default;
};

struct BackwardGraph {
  Graph graph;
  std::vector<BackwardInput> inputs;        // parallel to graph.inputs
  std::vector<Contribution> contributions;  // by forward input
  std::vector<int> grad_inputs;             // graph.outputs are the gradients of these forward inputs, by position
  // The gradients of some inputs are wanted in two parts (Arriving::in_parts): a dense sum, which is listed in
  // grad_inputs, and then the rows that lookups contribute. `rows` and `indices` are positions in graph.outputs, after
  // the gradients.
  struct Rows {
    int32_t input, rows, indices;
  };
  std::vector<Rows> rows = {};
};

// True for images whose channels are next to each other in memory, as runtime/tensor/memory_order.h has it.
bool lies_channels_last(const Value& value);

// The gradients that arrive at a backward. `gradients`: by output; empty: of all outputs that require one. `totals`: by
// input, true if backward adds to the gradient so far. `owned`: by input, true if it may overwrite that gradient.
struct Arriving {
  std::vector<bool> gradients, totals = {}, owned = {};
  // By output: its gradient is channels last and the output is not, or the other way around; empty: none. In almost all
  // programs gradients have the layouts of the outputs.
  std::vector<bool> in_other_layout = {};
  bool at_seams = false;  // gradients leave at the seams of the plan (plan/seams.h)
  // By forward input: its gradient is wanted in parts (Note [Gradients in parts] in
  // runtime/autograd/accumulate_node.h). Empty: none is. Only for inputs_in_parts().
  std::vector<bool> in_parts = {};
  friend auto operator<=>(const Arriving&, const Arriving&) = default;
};
// Returns the inputs whose gradients may come in parts: inputs whose rows are looked up, if in backward these lookups
// come after all other uses of the input.
std::vector<int32_t> inputs_in_parts(const Graph& forward);
// Derives the backward of `forward`. `device`: where the backward runs, and where rules make constants.
BackwardGraph derive_backward(const Graph& forward, const Arriving& arriving = {}, Device device = kCPU);

}  // namespace rondo::compile
