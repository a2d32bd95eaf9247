// Made-up operands: for tuning a plan (exec/tune.h), and for running a reproducer (exec/check_units.h).
//
// Note [Made-up places]. Integers may be places, that is, say where to read or write: indices, an order, the starts of
//   segments. Code that uses places does not check them, because an earlier launch has done so. So made-up places must
//   be valid for every reader: smaller than the number of rows or elements that a reader can address, and ascending if
//   they are the starts of segments.
#pragma once

#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

// Makes a tensor with the layout of a value and random numbers from `generator`: floats in (0, 1), which every op
// accepts; integers as in Note [Made-up places]. Constants would falsify measurements: a GPU clocks higher if it
// computes with equal numbers, because these take less power; all indices would be one row; all elements of a mask
// would be equal.
Tensor made_up(const Graph& graph, ValueId id, Device device, Generator& generator);

// True if an op reads these integers, or a view of them, as places: for picking, scattering, a check of indices, or as
// starts of segments.
bool are_places(const Graph& graph, ValueId id);
// True if these integers are valid as made-up ones: Note [Made-up places]. REQUIRES: are_places().
bool are_good_places(const Graph& graph, ValueId id, const std::vector<int64_t>& integers);

}  // namespace rondo::compile
