// One run of a recording, for a recorded call, a known one, or a replay. If it throws, this is where it is decided what
// remains of it.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// What a run has made. Its caller takes the results, then throws the error.
struct Ran {
  std::shared_ptr<const Binding> binding;  // that ran; null: the recording ran op by op
  // By output of the recording, and behind these what the backward needs. Undefined, or no results at all: an op before
  // it threw.
  std::vector<Tensor> results;
  std::shared_ptr<RegionNode> node;  // their history; null: each has its own
  std::exception_ptr error;          // null: none
};

// Runs the forward of `binding`, and writes what the recording writes. If a launch throws, the ledger counts it, and
// the results that were complete by then remain. A recording that writes, or has checks that wait, runs again instead,
// op by op, up to the first error of the program. Nothing that has an effect happens twice.
Ran run(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs);

// The same for a recording that nothing was compiled for.
Ran run_op_by_op(const Graph& recorded, std::span<const Tensor> inputs);

}  // namespace rondo::compile
