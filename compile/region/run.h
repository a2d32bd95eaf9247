// Runs a recording once: for a recorded call, a known one, or a replay. Decides which results remain if the run throws.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// What a run leaves behind. The caller takes the values first, then throws `error` if it is set.
struct RunResult {
  std::shared_ptr<const Binding> binding;  // what ran; null: the recording ran op by op
  // The outputs of the recording, then what the backward needs. An output is undefined, or `values` is empty, if an op
  // threw before the output was made.
  std::vector<Tensor> values;
  std::shared_ptr<RegionNode> node;  // the history of all values; null: each has its own
  std::exception_ptr error;          // null: none
};

// Runs the forward of `binding`, and makes the recording's writes in place. If a launch throws, the region's Ledger
// counts a failed run, and the caller gets the results that were complete by then. There is one exception: a recording
// that writes in place, or has late checks (Note [Checks that wait] in transform/fuse.cc), runs again op by op. It ends
// with the program's first error. It does not run again if an input is already written: nothing that has an effect
// happens twice.
RunResult run(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs);

// Runs a recording op by op, without a compiled program. Writes in place as run() does.
RunResult run_op_by_op(const Graph& recorded, std::span<const Tensor> inputs);

}  // namespace rondo::compile
