// The pipeline: all passes over a graph, in order, each with the condition under which it runs. pipeline.cc has the
// table. RONDO_DISABLE, RONDO_DUMP, verification, planted failures and reproducers use this table.
//
//   plan.graph = run_pipeline(std::move(graph), {.exact = false});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

// What passes may do besides the rewrites that they always do.
struct PassOptions {
  // Results keep eager's bits: default mode's passes do nothing.
  bool exact = true;
  // Capabilities::gathers_sums: on this target, one more launch costs more than widening all operands of a sum.
  bool gathers_sums = false;
};
// Returns the options as a line of a reproducer; "" for the default ones.
std::string to_string(const PassOptions& options);

// Runs all passes. A plan is made of the result.
Graph run_pipeline(Graph graph, const PassOptions& options);
// Returns, by input: false if no plan of the graph reads it. Runs only the passes after which inputs may be unread.
std::vector<bool> inputs_needed(const Graph& graph);

// Returns the stages of a pipeline with these options, in order, without those that RONDO_DISABLE leaves out. A stage
// may occur twice.
std::vector<CompilerStage> passes_of(const PassOptions& options);
// Runs the pass with this stage's name. Verifies the graph before and after the pass; the name "verify" only does that.
// Throws Error if there is no such pass.
Graph run_pass(std::string_view name, const Graph& graph, const PassOptions& options = {});

}  // namespace rondo::compile
