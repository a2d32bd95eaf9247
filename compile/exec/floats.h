// The floats of a run. Float attributes of ops (a factor, a dropout rate) are arguments of a run and no part of a plan:
// a plan that was made for some floats runs with others.
#pragma once

#include <memory>
#include <vector>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

// Where the launches of one plan find them. Immutable once made.
struct Floats {
  std::vector<double> scalars;  // of all kernels: LoweredUnit::first_scalar
  std::vector<Attrs> attrs;     // of the library calls that have floats: Launch::floats
  // What the program was compiled from, with these floats, if it keeps that (ProgramOptions::keeps_source); else null.
  std::shared_ptr<const Graph> source = nullptr;
};

// REQUIRES: same_but_floats(plan.graph, graph).
Floats floats_for(const Plan& plan, const Graph& graph);

// How the plan's floats follow from those of the recording that the plan was derived from: of the trace that is active
// on this thread. In the order of Floats.
FloatFormulas formulas_for(const Plan& plan);
// The floats for a call with other `recorded` floats.
Floats floats_at(const Plan& plan, const FloatFormulas& formulas, std::span<const double> recorded);

// The plan's graph with the floats of a run.
Graph with_floats(const Plan& plan, const Floats& floats);

// True if the graphs differ at most in the float attributes of their nodes (and in lines of the user's program).
bool same_but_floats(const Graph& a, const Graph& b);

}  // namespace rondo::compile
