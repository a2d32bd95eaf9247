// Made-up operands: what a plan is tuned on (exec/tune.h), and what a file that shows a fault runs on
// (exec/check_units.h).
//
// Note [Made-up places]. Integers may say where to read or write: an index, an order, where segments begin. Code that
//   reads them does not check them: an earlier launch has. So made-up ones must be valid for every reader: smaller than
//   the number of rows or elements that a reader can address, and ascending where they are the starts of segments.
#pragma once

#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

// A tensor with the layout of a value, of random numbers from `generator`: floats from (0, 1), which every op takes;
// integers as Note [Made-up places] says. What is measured on must not be constant: equal numbers switch few wires, so
// a GPU clocks higher, indices meet in one row, and masks have one side.
Tensor made_up(const Graph& graph, ValueId id, Device device, Generator& generator);

// True if an op reads these integers, or a view of them, as places: it picks or scatters by them, checks them, or adds
// up segments that begin there.
bool are_places(const Graph& graph, ValueId id);
// REQUIRES: are_places(). True if made-up ones could be these: Note [Made-up places].
bool are_good_places(const Graph& graph, ValueId id, const std::vector<int64_t>& integers);

}  // namespace rondo::compile
