// Why a recording is new: its first difference to what was compiled before, in the user's terms.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/modules/module.h"

namespace rondo::compile {

struct Difference {
  // "dim 1 of input #0: 64 -> 96", "op 5 is gelu_tanh, was relu (train.cc:41)"; empty if the recordings are equal.
  std::string text;
  // How much differs: inputs, ops and outputs. Zero if the recordings are equal.
  int64_t count = 0;
};

// The difference between `before` and `now`, in words. `input_names` names the inputs of `now`, in order; an empty
// name, or none, is shown by its position and first use.
Difference difference(const Graph& before, const Graph& now, std::span<const std::string> input_names = {});

// difference() to the nearest of the recordings: the fewest differences, the latest of equals. "" if `before` is empty.
std::string nearest_difference(std::span<const Graph* const> before, const Graph& now,
                               std::span<const std::string> input_names = {});

// Names for the tensors a recording met: `parameter "mlp.fc.weight"` where one is the module's, else empty.
std::vector<std::string> name_inputs(const nn::ModuleBase& module, std::span<const Tensor> inputs);

}  // namespace rondo::compile
