// When a stage of the compiler fails, its input is written to a file. The tool rondo_replay (tests/replay/) runs the
// file again, without the user's program. The error names the file.
//
//   const auto units = reproducible({.stage = CompilerStage::kFuse, .text = text}, [&] { return fuse(graph); });
//
// Files hold shapes, ops and attributes; no data of tensors, no paths. RONDO_REPRODUCERS names the folder (default: the
// system's for temporary files); "off" writes none. Equal failures write the same file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

// A stage and its input.
struct StageInput {
  CompilerStage stage;
  // Its input, in the form that exec/reproduce.h reads. Called only when the stage has failed.
  absl::FunctionRef<std::string()> text;
  // True: an Error of `body` is meant for the user, such as an error of a gradient rule, and is passed on unchanged.
  bool may_refuse = false;
};

// Writes the file and returns " (to reproduce: ...)" for the error message. Never throws: if the file cannot be
// written, the result says so.
std::string save_reproducer(const StageInput& input, std::string_view error);

// Runs `body`. If it throws Error or InternalError, so does this, with a reproducer's path in the text.
void run_reproducible(const StageInput& input, absl::FunctionRef<void()> body);
template <class Body> auto reproducible(const StageInput& input, Body body) {
  std::optional<decltype(body())> result;
  run_reproducible(input, [&] { result.emplace(body()); });
  return *std::move(result);
}

}  // namespace rondo::compile
