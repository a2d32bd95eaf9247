// Wrong numbers: which part of a compiled graph computes something else than eager execution does? Every run of a
// program is followed by the same graph op by op, as the passes left it and as they found it. Where results differ, the
// smallest part that differs on its own is named, with the user's line, or the pass that changed what is computed, in
// an InternalError and in a file for rondo_replay. On with RONDO_CHECK=units, or with compile::set_check_units()
// (options.h). Slow: everything runs three times.
//
// Collectives run once, in the compiled program. What it has sent is compared with eager execution's operand; its sum
// is the result in both (Note [Collectives are effects] in runtime/op/op.h). A unit with a collective never runs
// alone.
//
// In exact mode any other bit differs (NaNs are equal). In default mode, more does than rounding: Note [What rounding
// moves] of op_by_op.h.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/compile/exec/op_by_op.h"
#include "rondo/compile/exec/program.h"

namespace rondo::compile {

// RONDO_CHECK is read the first time.
bool checks_units();
// The check of region/check_floats.h.
bool checks_floats();
// The choice that a value of RONDO_CHECK makes, as "units,floats"; null: it is not set. Throws Error if there is no
// such check.
struct Checks {
  bool units = false;
  bool floats = false;
};
Checks parse_checks(const char* list);

// Program::run() and run_and_release(), followed by the check if it is on. Throw InternalError if numbers differ. What
// a check compares is there at the end: it returns all results, and `take` gets none.
std::vector<Tensor> run_checked(const Program& program, std::span<const Tensor> inputs,
                                const std::shared_ptr<const Floats>& floats, std::vector<Tensor>* finished = nullptr,
                                std::span<const Tensor> homes = {}, const TakeResults& take = nullptr);
std::vector<Tensor> run_and_release_checked(const Program& program, std::vector<Tensor> inputs,
                                            const std::shared_ptr<const Floats>& floats,
                                            std::span<const Tensor> homes = {}, const TakeResults& take = nullptr);

class UnitCheck {
 public:
  // `graph`: simplified. `units`: the nodes of each launch, in order. `source`: the graph before all passes; null: it
  // is not known. The inputs may be overwritten afterwards.
  UnitCheck(Graph graph, std::vector<std::vector<int32_t>> units, std::span<const Tensor> inputs,
            const ProgramOptions& options, const Graph* source = nullptr);

  // Runs the compiled graph, and then the graphs eagerly. Throws InternalError if its results differ.
  std::vector<Tensor> run(absl::FunctionRef<std::vector<Tensor>()> compiled);
  UnitCheck(const UnitCheck&) = delete;
  UnitCheck& operator=(const UnitCheck&) = delete;

 private:
  // Some nodes of the graph as a graph of its own.
  struct Part {
    Graph graph;
    std::vector<ValueId> inputs, outputs;  // of the whole graph
  };
  Part part(const std::vector<int32_t>& nodes) const;
  // The first wrong value of the part when it is compiled alone and reads eager values; "" if nothing.
  std::string wrong_in(const std::vector<int32_t>& nodes) const;
  // Fewer nodes that are wrong, too.
  std::vector<int32_t> smallest(std::vector<int32_t> nodes) const;
  std::string names_of(const std::vector<int32_t>& nodes) const;
  // Throws InternalError if these are not eager execution's results.
  void check(std::span<const Tensor> outputs);
  // The same for the source's results.
  void check_source(std::span<const Tensor> outputs);
  // The pass that made another function of the source, in words.
  std::string wrong_pass();

  const std::vector<std::vector<int32_t>> units_;
  const ProgramOptions options_;
  OpByOp eager_;
  const Graph& graph_;  // the simplified one
  std::optional<OpByOp> source_;
  CollectiveLog sums_;  // of the compiled run
};

// Operands for a graph's inputs, made up from a seed.
std::vector<Tensor> made_up_inputs(const Graph& graph);
// Compiles a graph, in exact mode, and runs it on made-up operands: "" if its results are those of the graph op by op.
std::string check_graph(const Graph& graph);

}  // namespace rondo::compile
