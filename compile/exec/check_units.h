// Finds the part of a compiled graph that computes other numbers than eager execution. After every run of a program,
// the same graph runs op by op, once as it is after the passes and once as it was before them. If results differ, an
// InternalError and a file for rondo_replay name the smallest part that differs on its own, with the user's line, or
// the pass that changes the numbers. Turned on by RONDO_CHECK=units or compile::set_check_units() (options.h). Slow:
// everything runs three times.
//
// Collectives run once, in the compiled program. The operand that the program sent is compared with the operand that
// eager execution computes. Both use the received sum as the result (Note [Collectives are effects] in
// runtime/op/op.h). A unit with a collective never runs alone.
//
// In exact mode, results differ if any bit does (NaNs are equal). In default mode, they differ if rounding cannot
// explain it: Note [What rounding moves] in op_by_op.h.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/compile/exec/op_by_op.h"
#include "rondo/compile/exec/program.h"

namespace rondo::compile {

// True if the check is on. The first call reads RONDO_CHECK.
bool checks_units();
// True if the check of region/check_floats.h is on.
bool checks_floats();
// Parses a value of RONDO_CHECK, such as "units,floats"; null: the variable is not set. Throws Error if the list names
// an unknown check.
struct Checks {
  bool units = false;
  bool floats = false;
};
Checks parse_checks(const char* list);

// Run the program as Program::run() or run_and_release() does, then the check if it is on. Throw InternalError if
// numbers differ. The check compares all results after the run. So with the check on, all results are returned, and
// `take` is not called.
std::vector<Tensor> run_checked(const Program& program, std::span<const Tensor> inputs,
                                const std::shared_ptr<const Floats>& floats, std::vector<Tensor>* finished = nullptr,
                                std::span<const Tensor> homes = {}, const TakeResults& take = nullptr);
std::vector<Tensor> run_and_release_checked(const Program& program, std::vector<Tensor> inputs,
                                            const std::shared_ptr<const Floats>& floats,
                                            std::span<const Tensor> homes = {}, const TakeResults& take = nullptr);

class UnitCheck {
 public:
  // `graph`: the graph after all passes. `units`: the nodes of each launch, in order. `source`: the graph before all
  // passes; null: unknown. The inputs may be overwritten afterwards.
  UnitCheck(Graph graph, std::vector<std::vector<int32_t>> units, std::span<const Tensor> inputs,
            const ProgramOptions& options, const Graph* source = nullptr);

  // Runs the compiled program, then both graphs eagerly. Throws InternalError if the results differ.
  std::vector<Tensor> run(absl::FunctionRef<std::vector<Tensor>()> compiled);
  UnitCheck(const UnitCheck&) = delete;
  UnitCheck& operator=(const UnitCheck&) = delete;

 private:
  // Some nodes of the graph as a separate graph.
  struct Part {
    Graph graph;
    std::vector<ValueId> inputs, outputs;  // the ids of these values in the whole graph
  };
  Part part(const std::vector<int32_t>& nodes) const;
  // Returns the first wrong value of the part when the part is compiled alone and reads eager values; "" if there is
  // none.
  std::string wrong_in(const std::vector<int32_t>& nodes) const;
  // Returns a subset of these nodes, as small as possible, that gives wrong values when compiled alone, too.
  std::vector<int32_t> smallest(std::vector<int32_t> nodes) const;
  std::string names_of(const std::vector<int32_t>& nodes) const;
  // Throws InternalError if the outputs differ from the results of eager execution.
  void check(std::span<const Tensor> outputs);
  // Throws InternalError if the outputs differ from the results of the source, run op by op.
  void check_source(std::span<const Tensor> outputs);
  // Returns a sentence that names the pass that changes the numbers of the source.
  std::string wrong_pass();

  const std::vector<std::vector<int32_t>> units_;
  const ProgramOptions options_;
  OpByOp eager_;
  const Graph& graph_;  // the graph after all passes
  std::optional<OpByOp> source_;
  CollectiveLog sums_;  // the collectives of the compiled run
};

// Makes up operands for a graph's inputs. Equal graphs get equal operands.
std::vector<Tensor> made_up_inputs(const Graph& graph);
// Compiles a graph in exact mode and runs it on made-up operands. Returns the first difference from the results of
// running the graph op by op; "" if there is none.
std::string check_graph(const Graph& graph);

}  // namespace rondo::compile
