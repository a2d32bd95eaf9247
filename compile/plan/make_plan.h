// Makes a plan from a graph: passes, fusion, lowering, the target's schedule, memory. Generates no code.
#pragma once

#include <functional>
#include <vector>

#include "rondo/compile/options.h"
#include "rondo/compile/plan/memory.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/compile/plan/seams.h"
#include "rondo/compile/target/target.h"

namespace rondo::compile {

struct PlanOptions {
  bool exact = false;
  Mode mode = Mode::kDefault;
  Epilogues epilogues = Epilogues::kTuned;
  std::vector<Update> updates = {};  // for plan_memory(), as is `donated`
  std::vector<bool> donated = {};
  std::vector<PlannedSeam> seams = {};
  // Whether a product is faster with these epilogues than without (exec/tune.h); null: not measured.
  std::function<bool(const Graph& graph, int32_t product, const std::vector<int32_t>& epilogues)> epilogues_pay =
      nullptr;
};

Plan make_plan(Graph graph, const Target& target, const PlanOptions& options = {});

// Plans a pass over a table: one launch, whose kernel (LoopKernel::per_item) runs on every item. The items are an
// argument of the run.
Plan make_table_plan(LoopKernel kernel, const Target& target);

// Does what make_plan() does, but plans no memory and no seams. Used to compare a graph's kernels with its kernels at
// other sizes.
Plan plan_launches(Graph graph, const Target& target, const PlanOptions& options);

// Makes the launch that calls the op of nodes[0], with the other nodes as its epilogues. It has no addresses yet.
// `wide_bias`: if the first epilogue widens, a bias that is the 16-bit copy of a parameter is replaced by the parameter
// itself (Capabilities::epilogues_pay).
Launch library_call(const Graph& graph, const std::vector<int32_t>& nodes, bool wide_bias = false);

// Returns the plan's kernels, in order.
std::vector<LoopKernel> kernels_of(const Plan& plan);

}  // namespace rondo::compile
