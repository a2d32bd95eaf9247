// The floats of a run. Float attributes of ops (a factor, a dropout rate) are arguments of a run, not part of a plan: a
// plan that was made with some floats can run with others.
#pragma once

#include <memory>
#include <vector>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// The floats for the launches of one plan. Immutable once made.
struct Floats {
  std::vector<double> scalars;  // of all kernels; those of one kernel begin at LoweredUnit::first_scalar
  std::vector<Attrs> attrs;     // of the library calls that have floats, by Launch::floats
  // The graph before all passes, with these floats, if the program keeps it
  // (ProgramOptions::keeps_source); otherwise null.
  std::shared_ptr<const Graph> source = nullptr;
};

// Returns the plan's floats, taken from `graph`. REQUIRES: same_but_floats(plan.graph, graph).
Floats floats_for(const Plan& plan, const Graph& graph);

// Returns formulas that compute the plan's floats, in the order of Floats, from those of the recording that the plan
// was derived from. Uses this thread's active trace.
FloatFormulas formulas_for(const Plan& plan);
// Returns the plan's floats for a call whose recorded floats are `recorded`.
Floats floats_at(const Plan& plan, const FloatFormulas& formulas, std::span<const double> recorded);

// Returns the plan's graph with the floats of a run.
Graph with_floats(const Plan& plan, const Floats& floats);

// True if the graphs differ at most in the float attributes of their nodes and in lines of the user's program.
bool same_but_floats(const Graph& a, const Graph& b);

}  // namespace rondo::compile
