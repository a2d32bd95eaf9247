// Mode::kMaxAutotune: each launch of a plan is timed in several ways, on made-up data, and the fastest kept.
#pragma once

#include <vector>

#include "rondo/compile/exec/code.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/runtime/random.h"

namespace rondo::compile {

// Chooses among the ways to run each launch. Results keep their bits if `exact`.
void tune(Plan& plan, Code& code, bool exact);

// True if a product of `graph` is faster with these ops as epilogues than with a pass over its result for each.
bool epilogues_pay(Device device, const Graph& graph, int32_t product, const std::vector<int32_t>& epilogues);

// A tensor with the layout of a graph's input, of random numbers from `generator`: floats from (0, 1), which every op
// takes; integers that are in range as indices, wherever their consumers put them. What is measured on must not be
// constant: equal numbers switch few wires, so a GPU clocks higher, indices meet in one row, and masks have one side.
Tensor made_up(const Graph& graph, ValueId id, Device device, Generator& generator);

}  // namespace rondo::compile
