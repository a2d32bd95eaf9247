// When a stage of the compiler fails, what it was given is left in a file that the tool rondo_replay (tests/replay/)
// runs again, without the user's program. The error names the file.
//
//   const std::vector<Unit> units = reproducible({.stage = "fuse", .graph = &graph}, [&] { return fuse(graph); });
//
// Files hold shapes, ops and attributes; no data of tensors, no paths. RONDO_REPRODUCERS names the folder (default: the
// system's for temporary files); "off" writes none. Equal failures write the same file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {

// A stage and what it works on.
struct StageInput {
  std::string_view stage;                     // "verify", a pass, "fuse", "lower", "emit" or "numbers"
  const Graph* graph = nullptr;               // all but "emit"
  const Unit* unit = nullptr;                 // "lower"
  const std::vector<bool>* needed = nullptr;  // "lower"
  const LoopKernel* kernel = nullptr;         // "emit"
};

// The same, on its own.
struct Reproducer {
  std::string stage;
  std::optional<Graph> graph;
  std::optional<Unit> unit;
  std::vector<bool> needed;
  std::optional<LoopKernel> kernel;
};
std::string to_string(const StageInput& input, std::string_view error);
// Also reads a bare graph (stage "compile": everything) or loop kernel ("emit"). Throws Error "line 3: what". `own`:
// ops of the program's own; rondo_replay has those of tests/replay/own_ops.cc.
Reproducer parse_reproducer(std::string_view text, std::span<const OpDef* const> own = {});

// Runs the stage and gives what it makes as text. Throws what the stage throws; Error if there is no such stage.
std::string replay(const Reproducer& reproducer);

// Writes the file and gives " (to reproduce: ...)" for the error. Never throws: if no file can be written, says so.
std::string save_reproducer(const StageInput& input, std::string_view error);

// Runs `body`. If it throws Error or InternalError, so does this, with a reproducer's path in the text.
void run_reproducible(const StageInput& input, absl::FunctionRef<void()> body);
template <class Body> auto reproducible(const StageInput& input, Body body) {
  std::optional<decltype(body())> result;
  run_reproducible(input, [&] { result.emplace(body()); });
  return *std::move(result);
}

}  // namespace rondo::compile
