// Mode::kMaxAutotune: each launch of a plan is timed in several ways, and the fastest way is kept. The inputs are made
// up (exec/made_up.h). All launches run in order, so each one is timed on the results of the earlier ones.
#pragma once

#include <vector>

#include "rondo/compile/exec/code.h"
#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// Chooses the way to run each launch. If `exact`, chooses only among ways whose results have the same bits.
void tune(Plan& plan, Code& code, bool exact);

// True if the product (a node of `graph`) is faster with these nodes as epilogues than with a separate pass over its
// result for each of them.
bool epilogues_pay(Device device, const Graph& graph, int32_t product, const std::vector<int32_t>& epilogues);

}  // namespace rondo::compile
