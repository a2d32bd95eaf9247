// The pipeline: every pass over a graph, in order, with when it runs. pipeline.cc is the table; RONDO_DISABLE,
// RONDO_DUMP, verification, planted failures and reproducers go by it.
//
//   plan.graph = run_pipeline(std::move(graph), {.exact = false});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

// What passes may do besides what they always do.
struct PassOptions {
  // Results keep eager's bits: default mode's passes do nothing.
  bool exact = true;
  // Capabilities::gathers_sums: a launch costs more than what it widens.
  bool gathers_sums = false;
};
// As a line of a reproducer; "" for the usual ones.
std::string to_string(const PassOptions& options);

// What a plan is made of: all passes.
Graph run_pipeline(Graph graph, const PassOptions& options);
// By input: false if no plan of the graph reads it. Runs only the passes that leave inputs unread.
std::vector<bool> inputs_needed(const Graph& graph);

// The stages of a pipeline with these options, in order, without those that RONDO_DISABLE leaves out. One may come
// twice.
std::vector<CompilerStage> passes_of(const PassOptions& options);
// One pass, by its stage's name, on a graph that is verified before and after; "verify" does only that. Throws Error if
// there is no such pass.
Graph run_pass(std::string_view name, const Graph& graph, const PassOptions& options = {});

}  // namespace rondo::compile
