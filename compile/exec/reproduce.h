// Runs a stage of the compiler again on the contents of a reproducer (stages/reproducer.h). For the
// tool rondo_replay (tests/replay/).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/compile/options.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/pipeline.h"

namespace rondo::compile {

// A stage and its input.
struct Reproducer {
  std::string stage;                 // StageInput::stage, or "compile"
  PassOptions options;               // for a pass
  std::optional<Graph> graph;        // for all stages but "emit"
  EpilogueChains epilogues;          // for "fuse"
  std::optional<Unit> unit;          // for "lower"
  std::vector<bool> needed;          // for "lower"
  std::optional<LoopKernel> kernel;  // for "emit"
  // For a stage of transform/derivation.h: its inputs besides `graph`, which is the recording. If `options` are not
  // exact, such a stage may choose layouts.
  CompileOptions recompute;
  Arriving arriving;
  std::optional<std::vector<ValueId>> saved;
};

// Reads the text of a reproducer, or of a graph alone (stage "compile", which runs everything) or a loop
// kernel alone ("emit"). Throws Error "line 3: what". `own`: the program's own ops; rondo_replay has the
// ops of tests/replay/own_ops.cc.
Reproducer parse_reproducer(std::string_view text, std::span<const OpDef* const> own = {});

// Runs the stage and returns its result as text. Throws what the stage throws; Error if there is no such stage.
std::string replay(const Reproducer& reproducer);

}  // namespace rondo::compile
