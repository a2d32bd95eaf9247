// Made-up operands: for tuning a plan (exec/tune.h), and for running a reproducer (exec/check_units.h).
//
// Note [Made-up places]. Integers are "places" if they say where to read or write: indices, an order, the starts of
//   segments. Code that uses places does not check them, because an earlier launch has checked them. So made-up places
//   must be valid for every op that reads them: smaller than the number of rows or elements that the op can address,
//   and ascending if they are the starts of segments.
#pragma once

#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

// Makes a tensor with the layout of value `id`, filled with random numbers from `generator`: floats in (0, 1), which
// every op accepts; integers as in Note [Made-up places]. Constants would falsify measurements: a GPU clocks higher if
// it computes with equal numbers, because these take less power; all indices would name the same row; all elements of a
// mask would be equal.
Tensor made_up(const Graph& graph, ValueId id, Device device, Generator& generator);

// True if an op reads the value, or a view of it, as places: to pick, to scatter, to check indices, or as starts of
// segments.
bool are_places(const Graph& graph, ValueId id);
// True if `integers` would be valid places for the value: Note [Made-up places]. REQUIRES: are_places(graph, id).
bool are_good_places(const Graph& graph, ValueId id, const std::vector<int64_t>& integers);

}  // namespace rondo::compile
