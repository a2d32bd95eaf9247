// Why a recording is new: its first difference from an earlier recording, in the user's terms.
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
  // The number of inputs, ops and outputs that differ. Zero if the recordings are equal.
  int64_t count = 0;
};

// Describes the difference between `before` and `now` in words. `input_names` names the inputs of `now`, in order; an
// input without a name is shown by its position and first use.
Difference difference(const Graph& before, const Graph& now, std::span<const std::string> input_names = {});

// Describes the difference() of `now` from the nearest recording: the one with the fewest differences, or the latest of
// several. "" if `before` is empty.
std::string nearest_difference(std::span<const Graph* const> before, const Graph& now,
                               std::span<const std::string> input_names = {});

// Returns names for a recording's inputs: `parameter "mlp.fc.weight"` if a tensor belongs to the module, otherwise
// empty.
std::vector<std::string> name_inputs(const nn::ModuleBase& module, std::span<const Tensor> inputs);

}  // namespace rondo::compile
