// Where a plan's values lie: outputs are fresh, transients share an arena that is leased for one run, and what a launch
// reads for the last time gives its memory to a result of that launch.
#pragma once

#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// Results to be written over an input, which belongs to the caller then, as positions in graph.inputs and
// graph.outputs. Where the order of reads and writes allows it, a run returns the input's own memory.
struct Update {
  int32_t input, output;
  bool visible = false;  // the input must keep its values where a launch throws
};

// Gives every value of the launches a place and every launch its addresses. `donated`, by position in graph.inputs
// (empty: none): a result that is computed element for element from what stands there may take its memory.
// Values in the arena begin at multiples of `alignment` bytes.
void plan_memory(Plan& plan, const std::vector<Update>& updates, const std::vector<bool>& donated, int64_t alignment);

}  // namespace rondo::compile
