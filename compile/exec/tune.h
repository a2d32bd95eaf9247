// Mode::kMaxAutotune: each launch of a plan is timed in several ways, and the fastest kept. The inputs are made up
// (exec/made_up.h); all launches run, in order, so each is timed on what those before it have made.
#pragma once

#include <vector>

#include "rondo/compile/exec/code.h"
#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// Chooses among the ways to run each launch. Results keep their bits if `exact`.
void tune(Plan& plan, Code& code, bool exact);

// True if a product of `graph` is faster with these ops as epilogues than with a pass over its result for each.
bool epilogues_pay(Device device, const Graph& graph, int32_t product, const std::vector<int32_t>& epilogues);

}  // namespace rondo::compile
