// Assigns memory to a plan's values. Outputs are allocated for each run. Transients share an arena that is leased for
// one run. If a launch is the last reader of a value, one of its results may take the value's memory.
#pragma once

#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// A request to write a result over an input, in the caller's memory. If the order of reads and writes allows it, the
// result that a run returns is in the input's own memory. `input` and `output`: positions in graph.inputs and
// graph.outputs.
struct Update {
  int32_t input, output;
  bool visible = false;  // the input must keep its values if a launch throws
};

// Assigns memory to every value of the launches, and addresses to every launch. `donated` marks inputs, by position in
// graph.inputs (empty: none): a result that is computed element by element from a marked input may take its memory.
// Values in the arena begin at multiples of `alignment` bytes.
void plan_memory(Plan& plan, const std::vector<Update>& updates, const std::vector<bool>& donated, int64_t alignment);

}  // namespace rondo::compile
